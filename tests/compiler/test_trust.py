"""Roots, parents and entries that others could have written are refused."""

from __future__ import annotations

import os
import pathlib
import warnings

import pytest

from torch_neuronx.compiler import trust
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.trust import UnsafeCacheError

KEY = "ab" * 32
OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def refused(root: pathlib.Path) -> str:
    """The reason why a cache at ``root`` is not used; it says so once and works as an empty one."""
    with pytest.warns(RuntimeWarning, match="not used, because others could have written"):
        cache = DiskCache(root)
    assert cache.stats.refused == 1
    assert cache.put(KEY, {}, b"x") is False and cache.get(KEY) is None
    assert cache.disabled is not None
    return cache.disabled


def test_root_is_made_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "a" / "b"
    assert DiskCache(root).disabled is None
    assert root.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_root_that_others_can_write(root: pathlib.Path, mode: int) -> None:
    root.mkdir()
    root.chmod(mode)
    assert f"(mode {mode:04o})" in refused(root)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_parent_that_others_can_write(tmp_path: pathlib.Path, mode: int) -> None:
    parent = tmp_path / "parent"
    (parent / "below").mkdir(parents=True)
    parent.chmod(mode)
    assert str(parent) in refused(parent / "root")
    assert str(parent) in refused(parent / "below" / "root")


def test_root_that_others_can_read_is_fine(root: pathlib.Path) -> None:
    root.mkdir(mode=0o755)
    assert DiskCache(root).disabled is None


def test_sticky_parent_wants_mode_0700(tmp_path: pathlib.Path) -> None:
    parent = tmp_path / "sticky"
    parent.mkdir()
    parent.chmod(0o1777)
    root = parent / "root"
    root.mkdir(mode=0o755)
    assert "its parent is writable by all and its mode is 0755" in refused(root)
    root.chmod(0o700)
    assert DiskCache(root).disabled is None
    assert DiskCache(parent / "new").disabled is None


def test_root_that_is_a_symlink(tmp_path: pathlib.Path, root: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    assert "it is a symlink" in refused(root)


def test_parent_that_is_a_symlink_is_checked_behind_it(tmp_path: pathlib.Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    (bad / "inner").mkdir(parents=True)
    bad.chmod(0o777)
    (tmp_path / "to_good").symlink_to(good)
    (tmp_path / "to_bad").symlink_to(bad / "inner")
    assert DiskCache(tmp_path / "to_good" / "root").disabled is None
    assert str(bad) in refused(tmp_path / "to_bad" / "root")


def test_symlink_in_a_sticky_directory(tmp_path: pathlib.Path) -> None:
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (tmp_path / "target").mkdir()
    (sticky / "link").symlink_to(tmp_path / "target")
    assert "anybody could have made" in refused(sticky / "link" / "root")


def test_symlinks_in_a_circle_end(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.warns(RuntimeWarning, match="cannot be made"):
        assert DiskCache(tmp_path / "a" / "root").disabled is not None


@needs_root
def test_root_or_parent_of_another_user(tmp_path: pathlib.Path) -> None:
    parent = tmp_path / "theirs"
    root = parent / "root"
    root.mkdir(parents=True)
    os.chown(root, OTHER_USER, -1)
    assert f"it belongs to user {OTHER_USER}" in refused(root)
    os.chown(root, 0, -1)
    os.chown(parent, OTHER_USER, -1)
    assert f"{parent}: it belongs to user {OTHER_USER}" in refused(root)


def test_root_that_cannot_be_made(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot be made"):
        cache = DiskCache(tmp_path / "file" / "root")
    assert cache.get(KEY) is None and cache.put(KEY, {}, b"") is False


@pytest.fixture
def stored(root: pathlib.Path) -> tuple[DiskCache, pathlib.Path]:
    cache = DiskCache(root)
    assert cache.put(KEY, {"a": 1}, b"payload")
    assert cache.get(KEY) is not None
    return cache, pathlib.Path(cache.path(KEY))


def entry_refused(cache: DiskCache, why: str) -> None:
    with pytest.warns(RuntimeWarning, match=why):
        assert cache.get(KEY) is None
    assert (cache.stats.refused, cache.stats.corrupt) == (1, 0)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_entry_that_others_can_write(stored: tuple[DiskCache, pathlib.Path], mode: int) -> None:
    cache, path = stored
    path.chmod(mode)
    entry_refused(cache, "others can write it")


def test_entry_that_is_a_symlink(
    stored: tuple[DiskCache, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    cache, path = stored
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    entry_refused(cache, "it is a symlink")


def test_entry_that_is_no_file(stored: tuple[DiskCache, pathlib.Path]) -> None:
    cache, path = stored
    path.unlink()
    os.mkfifo(path, 0o600)
    entry_refused(cache, "no regular file")


@needs_root
def test_entry_of_another_user(stored: tuple[DiskCache, pathlib.Path]) -> None:
    cache, path = stored
    os.chown(path, OTHER_USER, -1)
    entry_refused(cache, f"belongs to user {OTHER_USER}")


def test_shard_that_others_can_write(stored: tuple[DiskCache, pathlib.Path]) -> None:
    cache, path = stored
    path.parent.chmod(0o777)
    fresh = DiskCache(cache.root)
    with pytest.warns(RuntimeWarning, match="others can write it"):
        assert fresh.get(KEY) is None
    with pytest.warns(RuntimeWarning, match="others can write it"):
        assert fresh.put(KEY, {}, b"") is False


def test_refused_entry_is_replaced_by_a_good_one(
    stored: tuple[DiskCache, pathlib.Path],
) -> None:
    cache, path = stored
    path.chmod(0o666)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.get(KEY) is None
    assert cache.put(KEY, {}, b"new")
    entry = cache.get(KEY)
    assert entry is not None and entry.payload == b"new"


def test_check_directory_of_a_missing_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        trust.check_directory(str(tmp_path / "none"))
    assert issubclass(UnsafeCacheError, OSError)
