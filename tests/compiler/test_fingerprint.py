"""Whatever changes an executable changes the fingerprint, and nothing else does."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
from importlib import metadata

import pytest

from torch_neuronx import config
from torch_neuronx.compiler import fingerprint
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.fingerprint import (
    context_fingerprint,
    cpu_features,
    distribution_versions,
    plugin_hash,
    sources_hash,
)

PACKAGE = pathlib.Path(fingerprint.__file__).parents[1]


@pytest.fixture
def plugin(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "plugin.so"
    path.write_bytes(b"plugin one")
    return path


@pytest.fixture
def cache(root: pathlib.Path) -> DiskCache:
    return DiskCache(root)


def test_every_argument_counts(plugin: pathlib.Path, cache: DiskCache) -> None:
    def make(
        path: str = str(plugin),
        pjrt: str = "0.115",
        platform: str = "cpu 1",
        threads: int = 2,
        handlers: tuple[str, ...] = ("a", "b"),
        sources: bool = True,
        bound: bool = False,
    ) -> str:
        return context_fingerprint(
            path, pjrt, platform, threads, handlers, sources=sources, bound=bound, cache=cache
        )

    base = make()
    assert base == make() == make(handlers=("b", "a", "a"))
    assert len(base) == 64 and int(base, 16) >= 0
    others = [
        make(pjrt="0.106"),
        make(platform="cpu 2"),
        make(threads=3),
        make(handlers=("a",)),
        make(sources=False),
        make(bound=True),
    ]
    with config.override({"TORCH_NEURONX_TARGET": "host"}):
        others.append(make())
    with config.override({"TORCH_NEURONX_FLOAT64": "exact"}):
        others.append(make())
    plugin.write_bytes(b"plugin two")
    others.append(make())
    assert len({base, *others}) == 1 + len(others)


def test_cpu_counts(
    plugin: pathlib.Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (str(plugin), "0.115", "cpu", 2, ())
    before = context_fingerprint(*arguments, cache=cache)
    monkeypatch.setattr(fingerprint, "cpu_features", lambda: "x86_64 avx9")
    assert context_fingerprint(*arguments, cache=cache) != before


def test_option_that_is_not_keyed_does_not_count(plugin: pathlib.Path, cache: DiskCache) -> None:
    arguments = (str(plugin), "0.115", "cpu", 2, ())
    before = context_fingerprint(*arguments, cache=cache)
    with config.override({"TORCH_NEURONX_FALLBACK": "error"}):
        assert context_fingerprint(*arguments, cache=cache) == before


def test_editing_a_lowering_source_changes_the_hash(tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "package"
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("compiler", "dynamo", "eager", "frontend", "lowering"):
        shutil.copytree(PACKAGE / part, copy / part, ignore=ignore)
    shutil.copy(PACKAGE / "meta_kernels.py", copy)
    before = sources_hash(str(copy))
    assert before == sources_hash(str(PACKAGE))
    seen = {before}
    rule = copy / "lowering" / "rules" / "pointwise.py"
    rule.write_text(rule.read_text().replace("+", "-", 1))
    seen.add(sources_hash(str(copy)))
    (copy / "lowering" / "rules" / "new.py").write_text("")
    seen.add(sources_hash(str(copy)))
    (copy / "lowering" / "rules" / "new.py").rename(copy / "lowering" / "rules" / "renamed.py")
    seen.add(sources_hash(str(copy)))
    (copy / "compiler" / "options.py").write_text("# empty\n")
    seen.add(sources_hash(str(copy)))
    (copy / "meta_kernels.py").write_text("# other strides\n")
    seen.add(sources_hash(str(copy)))
    assert len(seen) == 6
    (copy / "lowering" / "notes.txt").write_text("not a source")
    (copy / "lowering" / "__pycache__").mkdir(exist_ok=True)
    (copy / "lowering" / "__pycache__" / "x.py").write_text("")
    assert sources_hash(str(copy)) in seen


def test_plugin_hash_is_remembered_and_notices_a_new_file(
    plugin: pathlib.Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = hashlib.sha256(b"plugin one").hexdigest()
    assert plugin_hash(str(plugin), cache) == expected
    reads = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, name: reads.append(name) or real(f, name))
    assert plugin_hash(str(plugin), DiskCache(cache.root)) == expected
    assert reads == []
    link = plugin.with_name("link.so")
    link.symlink_to(plugin)
    assert plugin_hash(str(link), cache) == expected
    assert reads == []
    # Same size and even the same modification time: the inode or change time tells.
    times = plugin.stat()
    plugin.unlink()
    plugin.write_bytes(b"plugin two")
    os.utime(plugin, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert plugin_hash(str(plugin), cache) == hashlib.sha256(b"plugin two").hexdigest()
    assert reads == ["sha256"]


def test_missing_plugin_is_an_error(cache: DiskCache, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        plugin_hash(str(tmp_path / "none.so"), cache)


def test_versions_are_those_of_the_metadata() -> None:
    found = distribution_versions()
    assert set(found) == {"torch", "jax", "jaxlib", "torchneuron"}
    for name in ("torch", "jax", "jaxlib"):
        assert found[name] == metadata.version(name)


def test_cpu_features_name_the_architecture() -> None:
    features = cpu_features().split()
    assert features[0] == os.uname().machine
    if features[0] == "x86_64":
        assert "sse2" in features


def test_a_portable_fingerprint_is_the_same_on_every_cpu(
    plugin: pathlib.Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(threads: int = 2, portable: bool = True, pjrt: str = "0.115") -> str:
        return context_fingerprint(
            str(plugin), pjrt, "cpu", threads, (), portable=portable, cache=cache
        )

    here = make(), make(portable=False)
    monkeypatch.setattr(fingerprint, "cpu_features", lambda: "x86_64 avx2")
    assert make() == make(threads=64) == here[0] != here[1]
    assert make(portable=False) not in here
    assert make(pjrt="0.116") != here[0]


def test_xlas_flags_count(
    plugin: pathlib.Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> str:
        return context_fingerprint(str(plugin), "0.115", "cpu", 2, (), cache=cache)

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    without = make()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert make() != without


def test_portable_requirements_leave_avx512_out(monkeypatch: pytest.MonkeyPatch) -> None:
    level = " ".join(fingerprint._LEVEL)
    monkeypatch.setattr(fingerprint, "cpu_features", lambda: f"x86_64 {level} gfni avx512f sse4a")
    assert {*fingerprint.portable_requirements()} == fingerprint._LEVEL | {"gfni", "sse4a"}
    monkeypatch.setattr(fingerprint, "cpu_features", lambda: level.replace("fma", ""))
    with pytest.raises(ValueError, match="lacks fma"):
        fingerprint.portable_requirements()
