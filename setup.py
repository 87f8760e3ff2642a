"""Builds ``torch_neuronx._C`` from every ``csrc/**/*.cc`` against the installed torch.

All other metadata is in pyproject.toml. Object files are kept under ``build/`` in every kind of
build (editable builds would use a directory that is thrown away), so ninja rebuilds only what
changed. ``CFLAGS=-g`` keeps debug information.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
BUILD_INFO = '''"""Written by setup.py: what the extension module was built against."""

TORCH_VERSION = {version!r}
'''


def header_dir(module: str, header: str, install: str) -> str:
    """The folder ``include`` of an installed package that carries ``header``.

    Raises RuntimeError if the package is missing or does not carry it.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    places = [Path(p, "include") for p in (spec.submodule_search_locations or [])] if spec else []
    for place in places:
        if (place / header).is_file():
            return str(place)
    raise RuntimeError(
        f"torchneuron needs {header} from {module} to build; looked in "
        f"{[str(p) for p in places] or 'no place: the module is not installed'}. "
        f"Run `pip install {install}` and build with --no-build-isolation."
    )


def header_dirs() -> list[str]:
    """Where PJRT's C API and XLA's interface of custom-call handlers lie."""
    return [
        header_dir("xla_plugins.xla_cpu_pjrt", "pjrt_c_api.h", "xla-cpu-pjrt==0.0.1"),
        header_dir("jaxlib", "xla/ffi/api/c_api.h", "'jaxlib==0.10.*'"),
    ]


def sources() -> list[str]:
    """Paths of all C++ sources, relative to this file as setuptools wants them."""
    found = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").glob("**/*.cc"))
    if not found:
        raise RuntimeError("torchneuron: no C++ source in csrc/; build from a complete checkout.")
    return found


class BuildWithInfo(BuildExtension):
    """BuildExtension that keeps its objects and records the torch it was built for."""

    def finalize_options(self) -> None:
        super().finalize_options()
        tag = f"{sys.implementation.cache_tag}-torch-{torch.__version__}"
        self.build_temp = str(ROOT / "build" / "objects" / tag)

    def run(self) -> None:
        super().run()
        package = Path(self.get_ext_fullpath("torch_neuronx._C")).parent
        text = BUILD_INFO.format(version=str(torch.__version__))
        (package / "_build_info.py").write_text(text)


def extension() -> CppExtension:
    debug = [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]
    return CppExtension(
        name="torch_neuronx._C",
        sources=sources(),
        include_dirs=[str(ROOT / "csrc"), *header_dirs()],
        extra_compile_args=["-std=c++20", "-O2", "-fvisibility=hidden", "-Wall", *debug],
        libraries=["dl"],
    )


# ninja is a script of the environment, which need not be activated.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
setup(ext_modules=[extension()], cmdclass={"build_ext": BuildWithInfo.with_options(use_ninja=True)})
