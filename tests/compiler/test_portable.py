"""``torchneuron cache export --portable``: made on one CPU, found and run on another."""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import pytest
from compiler_fakes import FakeBackend, FakeLower, program

from support import output_of
from torch_neuronx.compiler import bundle, fingerprint, portable, session
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.compile import Compiler

LEVEL = " ".join(sorted(fingerprint._LEVEL))
BIG = f"x86_64 {LEVEL} gfni avx512f"
SMALL = f"x86_64 {LEVEL} gfni"


class Machine:
    """A CPU with its cache and compiler."""

    def __init__(self, root: pathlib.Path, features: str, patch: pytest.MonkeyPatch) -> None:
        self.root, self.features, self.patch = root, features, patch
        self.start()

    def start(self) -> None:
        """A new process on it."""
        self.patch.setattr(fingerprint, "cpu_features", lambda: self.features)
        self.patch.setattr(bundle, "cpu_features", lambda: self.features)
        self.cache, self.backend, self.lower = DiskCache(self.root), FakeBackend(), FakeLower()
        self.compiler = Compiler(
            self.backend,
            f"own {self.features}",
            self.cache,
            module_fingerprint=f"modules {self.features}",
            portable="portable",
            features=frozenset(self.features.split()),
            lower=self.lower,
        )

    def run(self, key: bytes = b"key") -> str:
        """Compile a program, or find it; where it came from."""
        extra = {"source": session.pack(program())}
        made = self.compiler.compile_program(key, program, extra)
        self.compiler.drain()
        return made.source


@pytest.fixture
def big(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "big", BIG, monkeypatch)


def machine(big: Machine, features: str, name: str = "other") -> Machine:
    return Machine(big.root.parent / name, features, big.patch)


def exported(big: Machine) -> str:
    path = str(big.root.parent / "file")
    made = portable.export(big.compiler, path, b"secret")
    assert (made.programs, made.skipped) == (1, 0)
    assert "gfni" in made.requires and "avx512f" not in made.requires
    return path


def test_another_cpu_finds_what_was_exported(big: Machine) -> None:
    assert big.run() == "compiled"
    path = exported(big)
    small = machine(big, SMALL)
    assert bundle.take(small.cache, path, b"secret") == 2
    assert small.run() == "l1"
    assert (small.backend.calls, small.lower.count) == (["deserialize"], 0)
    assert small.run(b"another key") == "compiled"


def test_a_plain_export_is_not_found_on_another_cpu(big: Machine) -> None:
    big.run()
    path = str(big.root.parent / "file")
    bundle.export(big.cache, path)
    small = machine(big, SMALL)
    bundle.take(small.cache, path)
    assert small.run() == "compiled"


def test_what_the_machine_made_itself_comes_first(big: Machine) -> None:
    big.run()
    bundle.take(big.cache, exported(big))
    big.start()
    key = big.compiler.portable_keys("", b"", b"")[0]
    assert big.run() == "l1" and not big.cache.contains(key, "op")
    assert big.backend.calls == ["deserialize"]


def test_import_is_refused_where_the_cpu_lacks_a_feature(big: Machine) -> None:
    big.run()
    path = exported(big)
    old = machine(big, f"x86_64 {LEVEL}")
    with pytest.raises(bundle.BundleError, match="made for CPUs with gfni, which this one lacks"):
        bundle.take(old.cache, path)
    assert old.cache.list() == ()


def test_an_entry_is_refused_where_the_cpu_lacks_a_feature(big: Machine) -> None:
    """The cache of a file system that two machines share."""
    big.run()
    bundle.take(big.cache, exported(big))
    old = machine(big, f"x86_64 {LEVEL}", name="big")
    with pytest.warns(RuntimeWarning, match="made for CPUs with gfni; this one has not"):
        assert old.run() == "compiled"
    assert old.cache.stats.refused == 1
    assert old.backend.calls == ["compile"]


@pytest.mark.parametrize("level", ["op", "hlo"])
def test_a_corrupt_entry_is_compiled_anew(big: Machine, level: str) -> None:
    big.run()
    small = machine(big, SMALL)
    bundle.take(small.cache, exported(big))
    (item,) = small.cache.list(level)
    data = bytearray(pathlib.Path(item.path).read_bytes())
    data[-40] ^= 1
    pathlib.Path(item.path).write_bytes(data)
    small = machine(big, SMALL)
    with pytest.warns(RuntimeWarning, match="corrupt cache entry was removed"):
        assert small.run() == "compiled"


def test_an_executable_that_the_plugin_does_not_load_is_compiled_anew(big: Machine) -> None:
    big.run()
    small = machine(big, SMALL)
    bundle.take(small.cache, exported(big))
    (item,) = small.cache.list("hlo")
    small.cache.put(item.key, {"name": "x"}, b"of another plugin", "hlo")
    with pytest.warns(RuntimeWarning, match="the plugin does not load it"):
        assert small.run() == "compiled"


def test_entries_of_other_circumstances_are_left_out(big: Machine) -> None:
    big.run()
    other = machine(big, SMALL, name="big")
    made = portable.export(other.compiler, str(big.root.parent / "file"))
    assert (made.programs, made.skipped) == (0, 1)


def test_a_plugin_that_ignores_the_level_is_found_out(
    big: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    big.run()
    monkeypatch.setattr(FakeBackend, "serialize", lambda self, handle: b"+avx2,+avx512f")
    with pytest.raises(RuntimeError, match="compiles for AVX-512 in spite"):
        portable.export(big.compiler, str(big.root.parent / "file"))


def test_a_file_whose_requirements_were_edited_is_not_signed(big: Machine) -> None:
    big.run()
    path = exported(big)
    with zipfile.ZipFile(path) as archive:
        contents = {n: archive.read(n) for n in archive.namelist()}
    manifest = json.loads(contents["manifest.json"])
    contents["manifest.json"] = json.dumps({**manifest, "requires": []}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    with pytest.raises(bundle.BundleError, match="signature does not fit"):
        bundle.take(machine(big, SMALL).cache, path, b"secret")


@pytest.mark.full
def test_the_command_and_the_plugin(tmp_path: pathlib.Path) -> None:
    """Compiled here, exported, imported, and run with AVX-512 hidden from the keys."""
    run = """
        import sys, torch, torch_neuronx
        from torch_neuronx.compiler import fingerprint, session
        if {hide}:
            less = [w for w in fingerprint.cpu_features().split() if not w.startswith("avx512")]
            fingerprint.cpu_features = session.cpu_features = lambda: " ".join([*less, "other"])
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(33, 64), torch.nn.GELU()).to("neuron")
        y = torch.compile(model, backend="neuron")(torch.randn(16, 33).to("neuron")).sum()
        y.backward()
        print(round(y.item(), 3), {{e["source"] for e in torch_neuronx.compile_events()}})
    """

    def cli(root: str, *arguments: str) -> str:
        code = f"import sys; from torch_neuronx.cli import main; sys.exit(main({arguments!r}))"
        return output_of(code, TORCH_NEURONX_CACHE_DIR=str(tmp_path / root))

    def program_of(hide: bool, root: str) -> Any:
        code = run.format(hide=hide)
        value, source = output_of(code, TORCH_NEURONX_CACHE_DIR=str(tmp_path / root)).split()
        return float(value), source

    there = program_of(False, "there")
    assert there[1] == "{'compiled'}"
    file = str(tmp_path / "file")
    try:
        fingerprint.portable_requirements()
    except ValueError as error:
        pytest.skip(str(error))
    assert "programs for CPUs with" in cli("there", "cache", "export", "--portable", file)
    assert "entries of" in cli("here", "cache", "import", "--trust", file)
    here = program_of(True, "here")
    assert here[1] == "{'l1'}"
    assert here[0] == pytest.approx(there[0], abs=2e-3)
