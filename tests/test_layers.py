"""The layers of the house (docs/architecture.md): who may include and import whom.

Two tables, two scanners. Every file below ``csrc/`` and ``src/`` is covered: a directory or module
that a table does not name fails, so that a new layer is declared before it is used.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# C++: layer -> layers that it may include beside itself. "external" headers are judged below.
CPP_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "pjrt": {"base"},
    "runtime": {"base", "pjrt"},
    "torch": {"base", "pjrt", "runtime"},
    "host": {"base", "pjrt"},
    "bindings": {"base", "pjrt", "runtime", "torch", "host"},
}
# External headers by layer: a header with "/" or ".h" is external, one without is the standard's.
POSIX = r"(sys/\w+|dlfcn|errno|fcntl|pthread|sched|unistd)\.h$"
CPP_EXTERNAL: dict[str, str] = {
    "base": r"$^",  # nothing
    "pjrt": rf"pjrt_c_api\.h$|{POSIX}",
    "runtime": rf"pjrt_c_api\.h$|{POSIX}",
    "torch": r".*",
    "host": r"ATen/|c10/|xla/ffi/api/c_api\.h$",
    "bindings": r".*",
}

# Python: layer inside torch_neuronx -> other layers that it may import ("*": all).
PYTHON_LAYERS: dict[str, set[str]] = {
    "_build_info": set(),
    "meta_kernels": set(),
    "dlpack": {"_C"},
    "config": set(),
    "plugins": {"config"},
    "lowering": {"config"},
    "frontend": {"config", "lowering"},
    "compiler": {"_C", "config", "plugins", "lowering", "frontend"},
    "neuron": {"_C", "config", "plugins", "lowering", "compiler"},
    "eager": {"_C", "config", "meta_kernels", "plugins", "lowering", "compiler", "neuron"},
    "dynamo": {"_C", "config", "plugins", "lowering", "compiler", "neuron"},
    "distributed": {"_C", "config", "plugins", "lowering", "compiler", "neuron"},
    "integrations": {"_C", "config", "neuron", "dynamo"},
    "kernels": {"*"},
    "profiling": {"*"},
    "_autoload": {"*"},
    "cli": {"*"},
    "identity": {"*"},
    "__init__": {"*"},
}
# Packages that only the named layers may import; a path prefix in a package.
PYTHON_ONLY: dict[str, tuple[str, ...]] = {
    "jax": ("torch_neuronx.lowering",),
    "jaxlib": ("torch_neuronx.lowering",),
    "torch_mlir": ("torch_neuronx.frontend.torch_mlir",),
}
# Packages that a part of the house must never import.
PYTHON_NEVER: dict[str, tuple[str, ...]] = {
    "torch_neuronx.lowering": ("torch",),
    "torch_neuronx.config": ("torch",),
    "torch_neuronx.plugins": ("torch",),
    "nki": ("torch", "jax", "jaxlib", "torch_neuronx", "neuron_explorer", "neuron_readiness"),
    "neuron_explorer": ("torch_neuronx", "torch", "jax", "jaxlib", "nki", "neuron_readiness"),
    "neuron_readiness": ("torch_neuronx", "jax", "jaxlib", "neuron_explorer"),
    "torch_neuronx": ("neuron_explorer", "neuron_readiness"),
}
# Third-party packages of the kernel language, complete.
NKI_ALLOWED = {"numpy", "ml_dtypes", "nki"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def cpp_violations(csrc: Path) -> Iterator[str]:
    """Includes below ``csrc`` that the tables forbid, as ``file: header: reason``."""
    for path in sorted([*csrc.glob("**/*.cc"), *csrc.glob("**/*.h")]):
        layer = path.relative_to(csrc).parts[0]
        if layer not in CPP_LAYERS:
            yield f"{path.relative_to(csrc)}: directory {layer} is in no table"
            continue
        for quote, header in INCLUDE.findall(path.read_text()):
            target = _cpp_layer(csrc, path, header) if quote == '"' else None
            if target is not None and target != layer and target not in CPP_LAYERS[layer]:
                yield f"{path.relative_to(csrc)}: {header}: {layer} must not include {target}"
            elif target is None and not _external_allowed(layer, header):
                yield f"{path.relative_to(csrc)}: {header}: not for {layer}"


def _cpp_layer(csrc: Path, includer: Path, header: str) -> str | None:
    """The layer of a header of ours, or None for somebody else's."""
    for place in (includer.parent, csrc):
        target = (place / header).resolve()
        if target.is_file() and target.is_relative_to(csrc.resolve()):
            return target.relative_to(csrc.resolve()).parts[0]
    return None


def _external_allowed(layer: str, header: str) -> bool:
    is_standard = "/" not in header and "." not in header
    return is_standard or re.match(CPP_EXTERNAL[layer], header) is not None


def python_imports(path: Path, module: str) -> Iterator[str]:
    """Absolute names of the modules that a file imports, wherever in the file."""
    is_package = path.name == "__init__.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                drop = node.level - (1 if is_package else 0)
                parents = parents[: len(parents) - drop]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            # `from package import module` and `from module import name` look alike: give both.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def python_violations(src: Path) -> Iterator[str]:
    """Imports below ``src`` that the tables forbid, as ``module: import: reason``."""
    for path in sorted(src.glob("**/*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        layer = parts[1] if parts[0] == "torch_neuronx" else None
        if layer is not None and layer not in PYTHON_LAYERS:
            yield f"{module}: layer {layer} is in no table"
            continue
        for name in python_imports(path, module):
            reason = _python_reason(module, layer, name)
            if reason is not None:
                yield f"{module}: {name}: {reason}"


def _python_reason(module: str, layer: str | None, name: str) -> str | None:
    top = name.split(".")[0]
    for part, never in PYTHON_NEVER.items():
        if _within(module, part) and top in never:
            return f"{part} never imports {top}"
    if top in PYTHON_ONLY and not any(_within(module, part) for part in PYTHON_ONLY[top]):
        return f"only {', '.join(PYTHON_ONLY[top])} may import {top}"
    if _within(module, "nki") and top not in NKI_ALLOWED | sys.stdlib_module_names:
        return f"nki may import {sorted(NKI_ALLOWED)} and the standard library"
    if layer is None or top != "torch_neuronx":
        return None
    target = name.split(".")[1] if "." in name else "__init__"
    target = target if target in PYTHON_LAYERS or target == "_C" else "__init__"
    allowed = PYTHON_LAYERS[layer]
    if target == layer or "*" in allowed or target in allowed:
        return None
    return f"{layer} must not import {target}"


def _within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def test_cpp_layers_hold() -> None:
    assert {path.parent.name for path in (ROOT / "csrc").glob("*/*")} == set(CPP_LAYERS)
    assert list(cpp_violations(ROOT / "csrc")) == []


def test_python_layers_hold() -> None:
    assert list(python_violations(ROOT / "src")) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("base/a.h", '#include "pjrt/p.h"', "base must not include pjrt"),
        ("base/a.h", "#include <pjrt_c_api.h>", "not for base"),
        ("pjrt/a.cc", '#include "runtime/r.h"', "pjrt must not include runtime"),
        ("runtime/a.cc", "#include <ATen/ATen.h>", "not for runtime"),
        ("runtime/a.cc", '#include "c10/core/Device.h"', "not for runtime"),
        ("runtime/a.cc", '  #  include "torch/t.h"', "runtime must not include torch"),
        ("torch/a.cc", '#include "bindings/b.h"', "torch must not include bindings"),
        ("other/a.cc", "", "directory other is in no table"),
    ],
)
def test_forbidden_includes_are_found(tmp_path: Path, file: str, text: str, found: str) -> None:
    for header in ("pjrt/p.h", "runtime/r.h", "torch/t.h", "bindings/b.h", file):
        (tmp_path / header).parent.mkdir(exist_ok=True)
        (tmp_path / header).write_text("")
    (tmp_path / file).write_text(f"{text}\n")
    violations = list(cpp_violations(tmp_path))
    assert len(violations) == 1
    assert found in violations[0]


def test_allowed_includes_pass(tmp_path: Path) -> None:
    for header in ("base/b.h", "pjrt/p.h", "torch/dispatch/d.h"):
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).write_text("#include <vector>\n")
    (tmp_path / "pjrt/a.cc").write_text('#include "p.h"\n#include "base/b.h"\n#include <dlfcn.h>\n')
    (tmp_path / "torch/a.cc").write_text('#include "dispatch/d.h"\n#include <ATen/ATen.h>\n')
    assert list(cpp_violations(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("torch_neuronx/lowering/a.py", "import torch.fx", "never imports torch"),
        ("torch_neuronx/lowering/a.py", "from ..compiler import x", "must not import compiler"),
        ("torch_neuronx/lowering/rules/a.py", "from ...eager.b import c", "must not import eager"),
        ("torch_neuronx/lowering/a.py", "from torch_neuronx import _C", "must not import _C"),
        ("torch_neuronx/eager/a.py", "def f():\n  import jax.numpy", "only torch_neuronx.lowering"),
        ("torch_neuronx/eager/__init__.py", "from ..dynamo import b", "must not import dynamo"),
        ("torch_neuronx/dynamo/a.py", "import torch_neuronx.distributed", "import distributed"),
        ("torch_neuronx/dynamo/a.py", "from torch_neuronx import api", "must not import __init__"),
        ("torch_neuronx/newcomer.py", "", "layer newcomer is in no table"),
        ("torch_neuronx/kernels/a.py", "import neuron_explorer", "never imports neuron_explorer"),
        ("nki/a.py", "import torch", "nki never imports torch"),
        ("nki/language/a.py", "import pyarrow", "nki may import"),
        ("neuron_explorer/a.py", "from torch_neuronx import neuron", "never imports torch_neuronx"),
        ("neuron_readiness/a.py", "import torch_neuronx", "never imports torch_neuronx"),
    ],
)
def test_forbidden_imports_are_found(tmp_path: Path, file: str, text: str, found: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n")
    violations = list(python_violations(tmp_path))
    assert len(violations) == 1
    assert found in violations[0]


def test_allowed_imports_pass(tmp_path: Path) -> None:
    files = {
        "torch_neuronx/lowering/rules/a.py": "import jax\nfrom ..table import lowers\n",
        "torch_neuronx/eager/a.py": "import torch\nfrom torch_neuronx import _C, compiler\n",
        "torch_neuronx/cli.py": "from torch_neuronx import _autoload, neuron\n",
        "nki/a.py": "import numpy as np\nimport dataclasses\nfrom nki import b\nfrom . import b\n",
        "neuron_readiness/a.py": "import torch\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert list(python_violations(tmp_path)) == []
