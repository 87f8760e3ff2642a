"""csrc/base and csrc/pjrt, compiled alone and run against every installed CPU plugin."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
SOURCES = [HERE / "pjrt_test.cc", *sorted((CSRC / "pjrt").glob("*.cc"))]
COMPILER = shutil.which(os.environ.get("CXX", "g++"))

# Module, file, whether the package is a dependency (else it may be absent).
PLUGINS = {
    "lammps": ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so", True),
    "xla_plugins": ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so", False),
    "fastatomstruct": ("fastatomstruct_xla_cpu", "libpjrt_cpu.so", False),
}
# Read from the source, since pytest collects before anything is compiled.
CASES = re.findall(r'^    \{"(\w+)", test_\w+\},$', SOURCES[0].read_text(), re.MULTILINE)
FAKES = {
    "NO_ENTRY": ["is not a PJRT plugin", "does not export GetPjrtApi"],
    "NULL": ["is not a PJRT plugin", "returned null"],
    "SHORT": ["is not a PJRT plugin", "bytes"],
    "MAJOR": ["API version 3.7", "major version", "speaks (0)"],
    "MISSING_CALLS": ["API version 0.7", "lacks the call PJRT_Error_Destroy"],
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


def _package_directory(module: str) -> pathlib.Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # The parent package is absent.
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return pathlib.Path(next(iter(spec.submodule_search_locations)))


def _plugin_path(name: str) -> str:
    module, file, required = PLUGINS[name]
    directory = _package_directory(module)
    if directory is None:
        if required:
            pytest.fail(f"{module} is a dependency and is not installed")
        pytest.skip(f"{module} is not installed")
    return str(directory / file)


def _header_directory() -> pathlib.Path:
    directory = _package_directory("xla_plugins.xla_cpu_pjrt")
    if directory is None:
        pytest.skip("no pjrt_c_api.h: xla-cpu-pjrt is not installed")
    return directory / "include"


def _run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The compiled pjrt_test."""
    directory = tmp_path_factory.mktemp("pjrt_test")
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    flags += ["-isystem", _header_directory(), "-pthread"]
    built = _run(COMPILER, *flags, *SOURCES, "-o", directory / "pjrt_test", "-ldl")
    assert built.returncode == 0, built.stderr
    return directory / "pjrt_test"


def _varint_field(number: int, value: int) -> bytes:
    out = bytearray([number << 3])
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def _message_field(number: int, body: bytes) -> bytes:
    assert len(body) < 0x80
    return bytes([number << 3 | 2, len(body)]) + body


def compile_options() -> bytes:
    """A CompileOptionsProto: one portable replica, no excess precision."""
    build = _varint_field(1, -1) + _varint_field(4, 1) + _varint_field(5, 1)
    override = _message_field(1, b"xla_allow_excess_precision")
    override += _message_field(2, _varint_field(2, 0))
    return _message_field(3, build) + _varint_field(4, 1) + _message_field(7, override)


@pytest.fixture(scope="module")
def modules(program: pathlib.Path, tmp_path_factory: pytest.TempPathFactory):
    """Plugin path -> directory of modules that it reads."""
    made: dict[str, pathlib.Path] = {}

    def directory(plugin: str) -> pathlib.Path:
        attributes = _run(program, "attributes", plugin)
        assert attributes.returncode == 0, attributes.stdout
        version = re.search(
            r"^stablehlo_current_version=([\d.]+)$", attributes.stdout, re.MULTILINE
        )
        assert version, attributes.stdout
        key = version[1]
        if key not in made:
            path = tmp_path_factory.mktemp("modules")
            # In a process of its own: nothing else here needs jax.
            lowered = _run(sys.executable, HERE / "lower_modules.py", path, key)
            assert lowered.returncode == 0, lowered.stderr
            (path / "options.pb").write_bytes(compile_options())
            made[key] = path
        return made[key]

    return directory


def test_every_case_is_collected(program: pathlib.Path) -> None:
    assert _run(program, "cases").stdout.split() == CASES
    assert len(CASES) >= 17


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugin(plugin: str, case: str, program: pathlib.Path, modules) -> None:
    path = _plugin_path(plugin)
    done = _run(program, "run", case, path, modules(path))
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}{done.stderr[-2000:]}"
    count = re.search(r"^(\d+) checks, 0 failures$", done.stdout, re.MULTILINE)
    assert count and int(count[1]) > 2, done.stdout


def _load_error(program: pathlib.Path, path: object) -> str:
    done = _run(program, "load_error", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(path) in done.stdout
    return done.stdout


def test_missing_file_names_path_and_remedy(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = _load_error(program, tmp_path / "absent.so")
    assert text.startswith("NOT_FOUND: ") and "TORCH_NEURONX_PJRT_PLUGIN" in text


def test_file_that_is_no_library(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    assert "cannot be loaded as a shared library" in _load_error(program, tmp_path / "text.so")
    assert "is not a file" in _load_error(program, tmp_path)


@pytest.mark.parametrize("kind", FAKES)
def test_library_that_is_no_plugin(
    kind: str, program: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    library = tmp_path / f"fake_{kind.lower()}.so"
    source = HERE / "fake_plugin.c"
    flags = ["-x", "c", "-shared", "-fPIC", f"-DFAKE_{kind}", "-isystem", _header_directory()]
    built = _run(COMPILER, *flags, source, "-o", library)
    assert built.returncode == 0, built.stderr
    text = _load_error(program, library)
    for part in FAKES[kind]:
        assert part in text
