"""The disk cache: entries, corruption, failing disks, killed writers, pruning."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import warnings

import pytest
from compiler_fakes import BARE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_neuronx.compiler.cache import (
    CorruptEntryError,
    DiskCache,
    Entry,
    decode_entry,
    encode_entry,
)
from torch_neuronx.compiler.lease import host_token

KEY = "0123456789abcdef" * 4


def key_of(i: int) -> str:
    return hashlib.sha256(str(i).encode()).hexdigest()


@pytest.fixture
def cache(root: pathlib.Path) -> DiskCache:
    return DiskCache(root)


def files(root: str | pathlib.Path) -> list[str]:
    return [n for _, _, names in os.walk(root) for n in names]


def test_round_trip(cache: DiskCache) -> None:
    meta = {"kept": [0, 2], "text": "ä", "none": None}
    assert cache.get(KEY) is None
    assert cache.put(KEY, meta, b"\0payload")
    assert cache.get(KEY) == Entry(meta, b"\0payload")
    assert cache.get(KEY, "op") is None
    s = cache.stats
    assert (s.hits, s.misses, s.stored, s.corrupt, s.refused) == (1, 2, 1, 0, 0)


def test_entries_lie_in_shards_with_private_modes(cache: DiskCache, root: pathlib.Path) -> None:
    cache.put(KEY, {}, b"x", "op")
    path = root / "op" / KEY[:2] / KEY
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert files(root / "tmp") == []


def test_put_replaces(cache: DiskCache) -> None:
    cache.put(KEY, {"a": 1}, b"one")
    cache.put(KEY, {"a": 2}, b"two")
    assert cache.get(KEY) == Entry({"a": 2}, b"two")


@pytest.mark.parametrize("key", ["", "ab", "../" * 8 + "a" * 16, "AB" * 16, "a" * 32 + "\n"])
def test_bad_keys_are_refused(cache: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="cache key"):
        cache.get(key)


def test_bad_level_is_refused(cache: DiskCache) -> None:
    with pytest.raises(ValueError, match="cache level"):
        cache.put(KEY, {}, b"", "..")


def test_every_single_byte_matters(cache: DiskCache) -> None:
    data = encode_entry(KEY, {"a": 1}, b"payload")
    assert decode_entry(KEY, data) == Entry({"a": 1}, b"payload")
    for i in range(len(data)):
        for bit in (0x01, 0x80):
            bad = data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :]
            with pytest.raises(CorruptEntryError):
                decode_entry(KEY, bad)
    for size in range(len(data)):
        with pytest.raises(CorruptEntryError):
            decode_entry(KEY, data[:size])
    with pytest.raises(CorruptEntryError):
        decode_entry(KEY, data + b"\0")


def test_entry_under_another_name_is_refused() -> None:
    with pytest.raises(CorruptEntryError, match="another key"):
        decode_entry("f" * 64, encode_entry(KEY, {}, b""))


# Magic, version, header length, payload length, header, payload, checksum.
@pytest.mark.parametrize("offset", [0, 8, 12, 16, 24, -40, -1])
def test_corrupt_entry_is_a_miss_reported_once_and_removed(cache: DiskCache, offset: int) -> None:
    path = pathlib.Path(cache.path(KEY))
    for attempt in range(2):
        cache.put(KEY, {"a": 1}, b"payload" * 3)
        data = bytearray(path.read_bytes())
        data[offset] ^= 0xFF
        path.write_bytes(data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert cache.get(KEY) is None
        assert [w.category for w in caught] == ([RuntimeWarning] if attempt == 0 else [])
        assert not path.exists()
    assert cache.stats.corrupt == 2
    cache.put(KEY, {"a": 1}, b"payload")
    assert cache.get(KEY) == Entry({"a": 1}, b"payload")


def fail(code: int) -> object:
    def raises(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return raises


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_disk_that_fails_warns_once_and_leaves_nothing(
    cache: DiskCache, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail(code))
        with pytest.warns(RuntimeWarning, match=os.strerror(code)):
            assert cache.put(KEY, {}, b"x") is False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.put(KEY, {}, b"x") is False
    assert cache.stats.store_failures == 2
    assert files(root) == []
    assert cache.put(KEY, {}, b"x")


def test_disk_that_fills_up_half_way(
    cache: DiskCache, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(KEY, {}, b"old")
    write = os.write
    calls = 0

    def half(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, bytes(data)[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.warns(RuntimeWarning, match="full"):
            assert cache.put(KEY, {}, b"new" * 100) is False
    assert files(root) == [KEY]
    assert cache.get(KEY) == Entry({}, b"old")


def test_interrupted_put_leaves_no_temporary_file(
    cache: DiskCache, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.put(KEY, {}, b"x")
    assert files(root) == []


def test_unreadable_entry_is_a_miss(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEY, {}, b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail(errno.EIO))
        with pytest.warns(RuntimeWarning, match="cannot be read"):
            assert cache.get(KEY) is None
    assert cache.get(KEY) is not None


def test_root_removed_meanwhile_is_made_again(cache: DiskCache, root: pathlib.Path) -> None:
    import shutil

    cache.put(KEY, {}, b"x")
    shutil.rmtree(root)
    assert cache.get(KEY) is None
    assert cache.put(KEY, {}, b"y")
    assert root.stat().st_mode & 0o777 == 0o700
    assert cache.get(KEY) == Entry({}, b"y")


def test_temporary_files_of_dead_processes_are_removed(root: pathlib.Path) -> None:
    DiskCache(root).put(KEY, {}, b"x")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = {
        "dead": f"{host_token()}-{dead.pid}-00",
        "alive": f"{host_token()}-{os.getpid()}-00",
        "elsewhere": f"{'0' * 16}-1-00",
        "old elsewhere": f"{'0' * 16}-2-00",
    }
    for name in names.values():
        (root / "tmp" / name).write_bytes(b"half")
    os.utime(root / "tmp" / names["old elsewhere"], (0, 0))
    DiskCache(root).put(KEY, {}, b"x")
    assert sorted(files(root / "tmp")) == sorted([names["alive"], names["elsewhere"]])


WRITER = (
    BARE
    + """
import os, sys
from torch_neuronx.compiler.cache import DiskCache
cache = DiskCache(sys.argv[1])
i = 0
while True:
    key = "%064x" % (i % 5 + (1 << 200))
    fill = bytes([i % 251])
    assert cache.put(key, {"fill": i % 251, "size": 3000 + i}, fill * (3000 + i))
    print(i, flush=True)
    i += 1
"""
)


def test_killed_writer_never_leaves_a_corrupt_entry(root: pathlib.Path) -> None:
    chance = random.Random(0)
    seen = 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        # At a random point of a random put: after so many lines, and a little spinning.
        for _ in range(chance.randrange(1, 30)):
            writer.stdout.readline()
        for _ in range(chance.randrange(60_000)):
            pass
        writer.send_signal(signal.SIGKILL)
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        reader = DiskCache(root)
        for item in reader.list():
            entry = reader.get(item.key, item.level)
            assert entry is not None
            assert entry.payload == bytes([entry.meta["fill"]]) * entry.meta["size"]
            seen += 1
        assert (reader.stats.corrupt, reader.stats.refused) == (0, 0)
    assert seen >= 12
    DiskCache(root).put(KEY, {}, b"x")
    assert files(root / "tmp") == []


def test_two_processes_write_one_key(root: pathlib.Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)],
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    for w in writers:
        assert w.stdout is not None and w.stdout.readline()
    reader = DiskCache(root)
    for _ in range(300):
        for item in reader.list():
            entry = reader.get(item.key, item.level)
            assert entry is not None and len(entry.payload) == entry.meta["size"]
    for w in writers:
        assert w.stdout is not None
        w.kill()
        w.stdout.close()
        w.wait()
    assert reader.stats.corrupt == 0 and reader.stats.hits >= 300


def test_list_prune_and_verify(cache: DiskCache, root: pathlib.Path) -> None:
    keys = [key_of(i) for i in range(4)]
    for i, key in enumerate(keys):
        cache.put(key, {}, bytes(1000), "op" if i == 3 else "hlo")
        os.utime(cache.path(key, "op" if i == 3 else "hlo"), (1000 + i, 1000 + i))
    listed = cache.list()
    assert {x.key for x in listed} == set(keys)
    assert [x.key for x in cache.list("op")] == [keys[3]]
    assert all(x.size_bytes > 1000 and os.path.exists(x.path) for x in listed)

    pathlib.Path(cache.path(keys[2])).write_bytes(b"broken")
    with pytest.warns(RuntimeWarning, match="corrupt"):
        assert [x.key for x in cache.verify()] == [keys[2]]
    assert cache.verify() == ()

    # verify has read the entries and so used them; give them their ages back.
    os.utime(cache.path(keys[0]), (1000, 1000))
    size = listed[0].size_bytes
    removed = cache.prune(2 * size + 100)
    assert removed >= size
    assert {x.key for x in cache.list()} == {keys[1], keys[3]}
    assert cache.prune(0) > 0 and cache.list() == ()


def test_reading_keeps_an_entry_from_being_pruned(cache: DiskCache) -> None:
    old, used = key_of(1), key_of(2)
    for key in (old, used):
        cache.put(key, {}, bytes(100))
        os.utime(cache.path(key), (1000, 1000))
    assert cache.get(used) is not None
    size = cache.list()[0].size_bytes
    cache.prune(size)
    assert [x.key for x in cache.list()] == [used]


META = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans()))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    meta=META,
    payload=st.binary(max_size=2000),
    number=st.integers(),
)
def test_any_entry_comes_back(
    cache: DiskCache, meta: dict[str, object], payload: bytes, number: int
) -> None:
    assert cache.put(key_of(number), meta, payload)
    assert cache.get(key_of(number)) == Entry(meta, payload)
