"""The distribution: what it declares, what a build makes of it, and what `make` would do."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("test", "clients", "vision", "lint", "plugins", "readiness", "cluster", "torch-mlir")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# A module that compiles in a second; what is tested is the build, not our C++.
TINY_MODULE = """
#include <Python.h>
#include "pjrt_c_api.h"
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, PJRT_API_MAJOR};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


def requirements(name: str) -> list[str]:
    """Requirement lines of a file in requirements/, continuation lines joined."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def split_name(requirement: str) -> tuple[str, str]:
    """Distribution and version specifier of a requirement."""
    match = re.match(r"([A-Za-z0-9._-]+)\s*([^\s;]*)", requirement)
    assert match is not None, requirement
    return match[1], match[2]


def test_plugins_are_pinned_by_hash_to_the_declared_versions() -> None:
    pinned = dict(split_name(line) for line in requirements("plugins"))
    for line in requirements("plugins"):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", line), line
    declared = [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["build-system"]["requires"],
        *requirements("test"),
    ]
    plugins = {name: pin for name, pin in map(split_name, declared) if name in pinned}
    assert plugins == pinned


def test_every_dependency_is_documented_with_pin_and_licence() -> None:
    rows = {}
    for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and all(cells):
            rows[cells[0]] = cells[1]
    declared = [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["build-system"]["requires"],
        *(line for name in EXTRAS for line in requirements(name)),
    ]
    for name, pin in map(split_name, declared):
        assert rows[name].removesuffix(", by hash") == (pin or "any"), name
    assert {split_name(line)[0] for line in declared} == rows.keys() - {"Package", "---"}


def test_version_is_the_same_everywhere() -> None:
    tree = ast.parse((ROOT / "src" / "torch_neuronx" / "__init__.py").read_text())
    values = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert values == [PYPROJECT["project"]["version"]]


def build_tree(folder: Path) -> Path:
    """A copy of what a build reads, without C++ sources."""
    for name in ("pyproject.toml", "setup.py", "LICENSE", "requirements", "src"):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "_build_info.py", "__pycache__", "*.egg-info")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder)
    (folder / "README.md").write_text("# torchneuron\n")
    (folder / "csrc" / "bindings").mkdir(parents=True)
    return folder


def pip_wheel(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    return subprocess.run(
        [*command, "--wheel-dir", "wheels", "."],
        cwd=folder,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_wheel_holds_all_packages_the_extension_and_what_it_was_built_for(tmp_path: Path) -> None:
    folder = build_tree(tmp_path)
    (folder / "csrc" / "bindings" / "module.cc").write_text(TINY_MODULE)
    done = pip_wheel(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "wheels").glob("torchneuron-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        build_info = wheel.read("torch_neuronx/_build_info.py").decode()
        [metadata] = [n for n in names if n.endswith(".dist-info/METADATA")]
        requires = re.findall(r"^Requires-Dist: (\S+)$", wheel.read(metadata).decode(), re.M)
        [entry_points] = [n for n in names if n.endswith(".dist-info/entry_points.txt")]
        declared = wheel.read(entry_points).decode()
    for package in ("torch_neuronx", "nki", "neuron_explorer", "neuron_readiness"):
        assert f"{package}/__init__.py" in names
    assert "torchneuron_autoload.py" in names
    data = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src").rglob("*.json")}
    assert "torch_neuronx/compiler/overloads.json" in data
    assert data <= set(names)  # read at run time
    assert len([n for n in names if re.fullmatch(r"torch_neuronx/_C\..*\.so", n)]) == 1
    assert f"TORCH_VERSION = {str(torch.__version__)!r}" in build_info
    assert sorted(requires) == sorted(PYPROJECT["project"]["dependencies"])
    for line in (
        "torch_neuronx = torchneuron_autoload:autoload",
        "neuron = torch_neuronx.dynamo:neuron",
        "torchneuron = torch_neuronx.cli:main",
    ):
        assert line in declared


def test_build_without_sources_says_what_is_missing(tmp_path: Path) -> None:
    done = pip_wheel(build_tree(tmp_path))
    assert done.returncode != 0
    assert "no C++ source in csrc/" in done.stdout + done.stderr


def test_make_installs_torch_then_plugins_by_hash_then_the_package(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "run", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    steps = ("-m venv", "install 'torch==", "--require-hashes", "-e .", "examples/train_gpt.py")
    places = [done.stdout.find(step) for step in steps]
    assert -1 not in places, done.stdout
    assert places == sorted(places)
    assert "--no-build-isolation" in done.stdout
    assert not re.search(r"https?://|--index-url", done.stdout)


def test_installed_package_autoloads_without_jax_or_output() -> None:
    try:
        importlib.metadata.version("torchneuron")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("torchneuron is not installed here (run `make env`)")
    code = (
        "import sys, torch\n"
        "from torch_neuronx import _autoload\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')]\n"
        "print(_autoload.status.state, heavy)"
    )
    environ = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("registered []\n", "")
