"""Registration under checks (decision D15), each case in a process of its own.

A temporary site folder on the path holds the entry point under test, a small ``torch_neuronx``
made of the real ``_autoload.py`` and of a ``_register`` that renames PrivateUse1, and whatever
distribution the case puts beside it. An installed torchneuron takes no part: its site folder's
entry points are hidden by the case's own (the first distribution of a name wins).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

SOURCES = Path(__file__).resolve().parent.parent / "src"
ENTRY_POINT = "[torch.backends]\ntorch_neuronx = torchneuron_autoload:autoload\n"
# Like the real one, the package does not import torch before it calls autoload: the import happens
# inside, fires the entry point, and autoload is entered twice.
PACKAGE = """
from torch_neuronx import _autoload

def _register():
    import torch
    {body}

_autoload.autoload()
"""
RENAME = 'torch.utils.rename_privateuse1_backend("neuron")'
REPORT = """
import sys
from torch_neuronx import _autoload
name = torch._C._get_privateuse1_backend_name()
print("REPORT", name, _autoload.status.state, _autoload.status.reason)
"""


class Site:
    """A temporary site folder with our package in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(SOURCES / "torchneuron_autoload.py", folder)
        (folder / "torch_neuronx").mkdir()
        shutil.copy(SOURCES / "torch_neuronx" / "_autoload.py", folder / "torch_neuronx")
        self.package(RENAME)
        self.built_for(torch.__version__)
        self.distribution("torchneuron-0.1.0", entry_points=ENTRY_POINT)

    def package(self, body: str) -> None:
        (self.folder / "torch_neuronx" / "__init__.py").write_text(PACKAGE.format(body=body))

    def built_for(self, version: str) -> None:
        path = self.folder / "torch_neuronx" / "_build_info.py"
        path.write_text(f"TORCH_VERSION = {str(version)!r}\n")

    def distribution(self, stem: str, entry_points: str = "", **files: str) -> None:
        """Writes ``stem.dist-info``; ``files`` are further files in it (top_level → .txt)."""
        folder = self.folder / f"{stem}.dist-info"
        folder.mkdir()
        name, version = stem.split("-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        if entry_points:
            (folder / "entry_points.txt").write_text(entry_points)
        if "top_level" in files:
            (folder / "top_level.txt").write_text(files["top_level"])
        if "record" in files:
            (folder / "RECORD").write_text(files["record"])

    def run(self, code: str = "", *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs ``import torch``, then ``code`` and the report, with this folder first."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_", "PYTHONWARN"))}
        script = textwrap.dedent(environ.pop("before", "import torch")) + "\n" + code + REPORT
        return subprocess.run(
            [sys.executable, *flags, "-c", script],
            env={**clean, "PYTHONPATH": str(self.folder), **environ},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def report(done: subprocess.CompletedProcess[str]) -> tuple[str, str, str]:
    """PrivateUse1's name, the state and the reason; fails if the process failed."""
    assert done.returncode == 0, done.stderr
    line = next(text for text in done.stdout.splitlines() if text.startswith("REPORT "))
    name, state, reason = line.removeprefix("REPORT ").split(" ", 2)
    return name, state, reason


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """PrivateUse1 untouched, one RuntimeWarning, and the reason kept."""
    name, state, reason = report(done)
    assert (name, state) == ("privateuseone", "refused")
    for part in parts:
        assert part in reason
    assert done.stderr.count("RuntimeWarning: torchneuron") == 1
    assert reason in done.stderr


def test_import_torch_registers_silently(site: Site) -> None:
    done = site.run()
    assert report(done) == ("neuron", "registered", "")
    assert done.stderr == ""
    assert done.stdout.startswith("REPORT ")


def test_import_of_the_package_first_registers_once(site: Site) -> None:
    done = site.run(before="import torch_neuronx\nimport torch")
    assert report(done) == ("neuron", "registered", "")
    assert done.stderr == ""


def test_package_that_imports_torch_itself_registers_once(site: Site) -> None:
    path = site.folder / "torch_neuronx" / "__init__.py"
    path.write_text("import torch\n" + path.read_text())
    done = site.run(before="import torch_neuronx\nimport torch")
    assert report(done) == ("neuron", "registered", "")
    assert done.stderr == ""


def test_autoload_off_leaves_torch_alone_until_the_package_is_imported(site: Site) -> None:
    code = "print(torch._C._get_privateuse1_backend_name())\nimport torch_neuronx"
    done = site.run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.startswith("privateuseone\n")
    assert report(done) == ("neuron", "registered", "")


def test_autoload_brings_neither_jax_nor_a_plugin(site: Site) -> None:
    code = "import sys\nprint([m for m in sys.modules if m.startswith(('jax', 'lammps', 'xla'))])"
    assert site.run(code).stdout.startswith("[]\n")


@pytest.mark.parametrize(
    ("stem", "files"),
    [
        ("torch_neuronx-2.9.0", {}),
        ("nki-0.1.0", {}),
        ("some_dummy-1.0", {"top_level": "torch_neuronx\nother\n"}),
        ("some_dummy-1.0", {"top_level": "nki\n"}),
        ("neuron_tools-1.0", {"record": "a/b.py,,\nnki/__init__.py,sha256=x,1\n"}),
    ],
)
def test_other_owner_of_our_import_names_is_refused(
    site: Site, stem: str, files: dict[str, str]
) -> None:
    site.distribution(stem, **files)
    owner = stem.split("-")[0].replace("_", "-")
    assert_refused(site.run(), f"'{owner}'", "owns the import name")


@pytest.mark.parametrize(
    ("stem", "files"),
    [
        ("some_dummy-1.0", {"top_level": "torch_neuronx_tools\nnkid\n"}),
        ("neuron_tools-1.0", {"record": "a/nki/__init__.py,,\nneuron_tools/x.py,,\n"}),
    ],
)
def test_similar_names_are_not_mistaken_for_ours(
    site: Site, stem: str, files: dict[str, str]
) -> None:
    site.distribution(stem, **files)
    assert report(site.run())[:2] == ("neuron", "registered")


def test_explicit_import_is_refused_too(site: Site) -> None:
    site.distribution("nki-0.1.0")
    done = site.run("import torch_neuronx", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert_refused(done, "'nki'")


def test_privateuse1_renamed_by_another_backend_is_left_alone(site: Site) -> None:
    before = "import torch\ntorch.utils.rename_privateuse1_backend('other')\nimport torch_neuronx"
    done = site.run(before=before, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    name, state, reason = report(done)
    assert (name, state) == ("other", "refused")
    assert "renamed to 'other'" in reason
    assert done.stderr.count("RuntimeWarning") == 1


def test_foreign_torch_minor_is_refused(site: Site) -> None:
    site.built_for("1.99.0+cpu")
    assert_refused(site.run(), "built for torch 1.99.*", f"this is torch {torch.__version__}")


def test_other_patch_release_and_build_of_the_same_minor_is_accepted(site: Site) -> None:
    minor = ".".join(torch.__version__.split(".")[:2])
    site.built_for(f"{minor}.7+cu999")
    assert report(site.run())[1] == "registered"


def test_missing_extension_module_is_refused(site: Site) -> None:
    (site.folder / "torch_neuronx" / "_build_info.py").unlink()
    assert_refused(site.run(), "extension module is not built")


@pytest.mark.parametrize("flags", [(), ("-W", "error::RuntimeWarning")])
def test_failing_registration_does_not_break_import_torch(
    site: Site, flags: tuple[str, ...]
) -> None:
    site.package("raise OSError('cannot load _C')")
    done = site.run("print(torch.ones(2).sum().item())", *flags)
    name, state, reason = report(done)
    assert (name, state, reason) == ("privateuseone", "failed", "OSError: cannot load _C")
    assert done.stdout.startswith("2.0\n")
    assert done.stderr.count("is not registered: OSError: cannot load _C") == 1


def test_package_that_cannot_be_imported_does_not_break_import_torch(site: Site) -> None:
    (site.folder / "torch_neuronx" / "__init__.py").write_text("raise ValueError('broken')\n")
    done = site.run("print('alive')\nsys = __import__('sys'); sys.exit(0)")
    assert done.returncode == 0
    assert done.stdout == "alive\n"
    assert "ValueError: broken" in done.stderr


def test_package_shadowed_by_another_is_not_imported(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "torch_neuronx").mkdir(parents=True)
    (other / "torch_neuronx" / "__init__.py").write_text("raise SystemExit('imported')\n")
    path = os.pathsep.join([str(other), str(site.folder)])
    done = site.run("print('alive')\nsys = __import__('sys'); sys.exit(0)", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert "leads to" in done.stderr and "RuntimeWarning" in done.stderr
