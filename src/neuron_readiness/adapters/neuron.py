"""The ``neuron`` device: this project's package, AWS's native one, or the XLA-era one.

All three may own the import name ``torch_neuronx``; the record says which it was. Only the API that
AWS documents is required; what only this project tells is asked for and used if it is there.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
from functools import cached_property
from pathlib import Path
from typing import Any

from neuron_readiness.adapters.accelerator import AcceleratorAdapter, driver
from neuron_readiness.adapters.base import CompileEvent, HostOperator

_DISTRIBUTIONS = ("torchneuron", "torch-neuronx", "neuronx-cc", "libneuronxla", "torch-xla", "nki")


class NeuronAdapter(AcceleratorAdapter):
    compile_backend = "neuron"

    @cached_property
    def _package(self) -> Any:
        """The package ``torch_neuronx``, whosever it is, or None: the only door to a backend."""
        try:
            return importlib.import_module("torch_neuronx")
        except Exception:  # a broken backend is an absent one; `absent` says why
            return None

    def _extra(self, module: str, name: str) -> Any:
        """A function of the package that only some lineages have, or None."""
        if self._package is None:
            return None
        try:
            return getattr(importlib.import_module(f"torch_neuronx.{module}"), name, None)
        except ImportError:
            return None

    def lineage(self) -> tuple[str, str]:
        """ "this project" | "native" | "xla-era" | "none" | "unclear", and why."""
        owners = set(importlib.metadata.packages_distributions().get("torch_neuronx", []))
        if self._package is None:
            return "none", "torch_neuronx cannot be imported"
        if "torchneuron" in owners and len(owners) == 1:
            return "this project", "the distribution torchneuron owns torch_neuronx"
        if len(owners) > 1:
            return "unclear", f"torch_neuronx belongs to several distributions: {sorted(owners)}"
        import torch

        if torch._C._get_privateuse1_backend_name() == "neuron":
            return "native", "the PrivateUse1 device is called neuron"
        version = str(_version("torch-neuronx") or getattr(self._package, "__version__", ""))
        if version.startswith(tuple(_FAMILIES.values())):
            return "native", f"version {version} is of a native family, which is not registered"
        return "xla-era", f"version {version or 'unknown'}, and no native device is registered"

    def absent(self) -> str | None:
        if self._package is None:
            return "the package torch_neuronx cannot be imported"
        return super().absent()

    def identity(self) -> dict[str, Any]:
        lineage, why = self.lineage()
        facts: dict[str, Any] = {
            "backend package": getattr(self._package, "__version__", None),
            "lineage": lineage,
            "lineage because": why,
            "distributions": {n: v for n in _DISTRIBUTIONS if (v := _version(n))},
        }
        if lineage == "this project":  # its version stays the same from one build to the next
            facts["sources"] = _digest(Path(self._package.__file__).parent)
        if self.absent() is None:
            properties = self._call("get_device_properties")
            for title, name in (
                ("device name", "name"),
                ("runtime", "platform"),
                ("plugin", "plugin"),
                ("plugin version", "plugin_version"),
                ("target", "target"),
                ("host kernels", "host_kernels"),
            ):
                if hasattr(properties, name):
                    facts[title] = str(getattr(properties, name))
        facts["driver"] = driver("neuron")
        if facts["driver"] is None and facts.get("runtime") == "cpu":
            facts["driver"] = "none: the plugin runs on the host's processor"
        facts["compiler"] = (
            f"StableHLO lowering by jax {_version('jax')}, compiled by the plugin"
            if lineage == "this project"
            else f"neuronx-cc {_version('neuronx-cc')}"
        )
        return facts

    def host_computes(self) -> bool:
        if self.lineage()[0] != "this project" or self.absent() is not None:
            return False
        return getattr(self._call("get_device_properties"), "platform", "") == "cpu"

    def stands_in(self) -> str:
        if self.lineage()[0] != "this project" or self.absent() is not None:
            return ""
        properties = self._call("get_device_properties")
        if (
            getattr(properties, "platform", "") != "cpu"
            or getattr(properties, "target", "host") == "host"
        ):
            return ""
        return (
            f"the plugin {getattr(properties, 'plugin', '')} runs {properties.target}'s programs "
            "on the host's processor: times and memory are not the accelerator's"
        )

    def route(self) -> tuple[bool | None, str]:
        import torch

        lineage, why = self.lineage()
        if lineage in ("none", "unclear"):
            return False, why
        if lineage == "xla-era":
            return False, f"{why}; the native device needs the native package family"
        if lineage == "native":
            return _native_route(
                str(_version("torch-neuronx") or getattr(self._package, "__version__", "")),
                str(torch.__version__),
                platform.python_version(),
                platform.machine(),
            )
        if self._extra("_autoload", "built_for") is None:
            return None, why
        built = self._extra("_autoload", "built_for")()
        same = str(built).split(".")[:2] == str(torch.__version__).split(".")[:2]
        return same, f"built for torch {built}, running torch {torch.__version__}"

    def host_operators(self) -> list[HostOperator] | None:
        detailed = self._extra("eager.tracking", "fallbacks")
        if detailed is not None:
            return [
                HostOperator(f.overload, count, f.line, str(f.shapes)) for f, count in detailed()
            ]
        names = getattr(self._package, "get_fallback_ops", None)
        return None if names is None else [HostOperator(_full(n), None) for n in names()]

    def device_operators(self) -> set[str] | None:
        names = getattr(self._package, "get_executed_ops", None)
        return None if names is None else {_full(n) for n in names()}

    def clear_tracking(self) -> None:
        clear = getattr(self._package, "clear_op_tracking", None)
        if clear is not None:
            clear()

    @cached_property
    def _table(self) -> dict[str, str]:
        """Overload to "native", "composite" or "fallback", from the package's own table."""
        if self._package is None:
            return {}
        path = Path(self._package.__file__).with_name("compatibility.json")
        if not path.is_file():
            return {}
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {name: how for row in rows for name, how in row["overloads"].items()}

    def supports(self, overload: str) -> bool | None:
        how = self._table.get(overload) or self._table.get(overload.removesuffix(".default"))
        return None if how is None else how != "fallback"

    def compile_events(self) -> list[CompileEvent] | None:
        events = getattr(self._package, "compile_events", None)
        if events is None:
            return None
        return [
            CompileEvent(
                e["number"], e["name"], e["source"], e["lower_s"] + e["compile_s"] + e["load_s"]
            )
            for e in events()
        ]

    def cache_environment(self, folder: Path) -> dict[str, str] | None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        return {
            "TORCH_NEURONX_CACHE_DIR": str(folder),
            "NEURON_COMPILE_CACHE_URL": str(folder),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }

    def memory_note(self) -> str:
        if self.lineage()[0] == "this project":
            return "a model of the target's memory, not the plugin's own bytes"
        return ""


# AWS TorchNeuron's release notes, Neuron 2.33: a package family for each minor version of torch,
# wheels for these versions of Python, on Linux x86_64.
_FAMILIES = {"2.13": "2.13.3", "2.14": "2.14.3"}
_PYTHONS = ("3.12", "3.13", "3.14")
_SOURCE = "by the table of package families in the release notes of Neuron 2.33"


def _native_route(
    package: str, torch_version: str, python: str, machine: str
) -> tuple[bool | None, str]:
    """Whether AWS documents these versions together; None for a torch newer than its table."""
    minor = ".".join(torch_version.split(".")[:2])
    here = f"torch-neuronx {package}, torch {torch_version}, Python {python}, {machine}"
    family = _FAMILIES.get(minor)
    if family is None:
        known = ", ".join(_FAMILIES)
        return None, f"{here}: torch {minor} is not in the table ({known}), {_SOURCE}"
    wrong = []
    if not package.startswith(family):
        wrong.append(f"torch {minor} takes torch-neuronx {family}.*")
    if ".".join(python.split(".")[:2]) not in _PYTHONS:
        wrong.append(f"wheels are for Python {', '.join(_PYTHONS)}")
    if machine != "x86_64":
        wrong.append("wheels are for x86_64")
    return not wrong, f"{here}: {'; '.join(wrong) or 'documented together'}, {_SOURCE}"


def _full(name: str) -> str:
    return name if "::" in name else f"aten::{name}"


def _digest(package: Path) -> str:
    """A hash of a package's Python files and extensions."""
    found = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".so")):
        found.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return found.hexdigest()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
