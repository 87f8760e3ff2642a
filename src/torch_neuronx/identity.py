"""What is installed here and where registration stands: the facts of ``torchneuron info``."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import warnings
from pathlib import Path
from typing import Any

# Distributions of AWS Neuron and of PyTorch/XLA: they use our names, or switch client libraries to
# another way of running.
_RELATED = (
    "torch-neuronx",
    "torch-xla",
    "torch-neuron",
    "neuronx-cc",
    "neuronx-distributed",
    "libneuronxla",
    "nki",
    "optimum-neuron",
    "jax-neuronx",
)
# Variables of others that change what we do.
_READ_TOO = (
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMP_NUM_THREADS",
    "TF_CPP_MIN_LOG_LEVEL",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_LOGS",
    "XDG_CACHE_HOME",
    "XLA_FLAGS",
)


def collect() -> dict[str, Any]:
    """What can be said without starting a device: JSON-ready, one entry per subject."""
    import torch  # registers the device, or says why not

    from torch_neuronx import _autoload

    return {
        "system": {
            "os": platform.platform(),
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "usable cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
        },
        "package": package_facts(),
        "versions": {
            "torchneuron": _version("torchneuron"),
            "torch": str(torch.__version__),
            "built for torch": _autoload.built_for(),
            "jax": _version("jax"),
            "jaxlib": _version("jaxlib"),
            "numpy": _version("numpy"),
        },
        "registration": {
            "state": _autoload.status.state,
            "reason": _autoload.status.reason,
            "PrivateUse1 name": torch._C._get_privateuse1_backend_name(),
            "autoload": os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1",
        },
        "plugins": plugin_facts(),
        "target": target_facts(),
        "cache": cache_facts(),
        "environment": environment_facts(),
    }


def plugin_facts() -> dict[str, Any]:
    """The chosen plugin, the installed ones, and a note for each accelerator left unused."""
    from torch_neuronx import config, plugins

    found = plugins.discover()
    facts: dict[str, Any] = {"installed": {name: str(path) for name, path in found.items()}}
    try:
        chosen = plugins.resolve(config.get("TORCH_NEURONX_PJRT_PLUGIN"))
    except plugins.PluginError as error:
        return {**facts, "chosen": None, "error": str(error)}
    facts["chosen"] = str(chosen)
    names = [name for name, path in found.items() if path.resolve() == chosen.resolve()]
    facts["chosen name"] = names[0] if names else None
    facts["chosen version"] = plugins.version(names[0]) if names else None
    facts["PJRT version"] = _pjrt_version(chosen)
    facts["notes"] = [
        f"plugin '{name}' is installed and not chosen; TORCH_NEURONX_PJRT_PLUGIN={name} chooses it "
        "(experimental)"
        for name in plugins.accelerators(found)
        if found[name] != chosen
    ]
    return facts


def package_facts() -> dict[str, Any]:
    """Who provides ``torch_neuronx``, and which related packages are installed beside it."""
    import torch_neuronx

    owners = importlib.metadata.packages_distributions().get("torch_neuronx", [])
    return {
        "torch_neuronx": str(Path(torch_neuronx.__file__).parent),
        # An editable installation lists no packages.
        "provided by": sorted(set(owners)) or [f"torchneuron {torch_neuronx.__version__}"],
        "other Neuron and XLA packages": {
            name: version for name in _RELATED if (version := _version(name)) is not None
        },
    }


def target_facts() -> dict[str, Any]:
    """The target profile that is modelled, and how many devices there are."""
    from torch_neuronx import config

    try:
        from torch_neuronx.neuron import target

        profile = target.current()
        return {
            "profile": profile.name,
            "description": profile.description,
            "HBM of a device, bytes": profile.hbm_bytes,
            "float64 arithmetic": "float64" if target.exact_float64() else "float32",
            "devices": config.get("TORCH_NEURONX_NUM_DEVICES"),
        }
    except (config.ConfigError, ImportError) as error:
        return {"error": str(error)}


def cache_facts() -> dict[str, Any]:
    """The executable cache on the disk; makes nothing there."""
    from torch_neuronx import config

    try:
        root = str(config.get("TORCH_NEURONX_CACHE_DIR"))
        off = config.get("TORCH_NEURONX_DISABLE_NEFF_CACHE")
    except config.ConfigError as error:
        return {"error": str(error)}
    if off:
        return {"root": root, "state": "off (TORCH_NEURONX_DISABLE_NEFF_CACHE)"}
    if not os.path.isdir(root):
        return {"root": root, "state": "not made yet"}
    from torch_neuronx.compiler.cache import DiskCache

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below
        cache = DiskCache(root)
    if cache.disabled is not None:
        return {"root": root, "state": cache.disabled}
    entries = cache.list()
    return {
        "root": root,
        "state": "in use",
        "entries": len(entries),
        "bytes": sum(entry.size_bytes for entry in entries),
    }


def environment_facts() -> dict[str, Any]:
    """Variables of ours and of those we read that are set, and what is wrong with them."""
    from torch_neuronx import config

    names = sorted(
        n
        for n in os.environ
        if n in config.OPTIONS or n in _READ_TOO or n.startswith(config.PREFIXES)
    )
    return {"set": {n: os.environ[n] for n in names}, "problems": config.problems()}


def device_facts() -> dict[str, Any]:
    """Starts the device: platform, plugin and every device. ``{"error": ...}`` if that fails."""
    import torch

    try:
        neuron = torch.get_device_module("neuron")
        count = neuron.device_count()
        properties = [neuron.get_device_properties(i) for i in range(count)]
    except Exception as error:  # reported, whatever it is: that is what the command is for
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "count": count,
        "devices": [
            {
                name: str(getattr(p, name))
                for name in (
                    "name",
                    "platform",
                    "plugin",
                    "plugin_version",
                    "target",
                    "host_kernels",
                )
                if hasattr(p, name)
            }
            for p in properties
        ],
    }


def render(facts: dict[str, Any]) -> str:
    """``collect``'s result as indented text."""
    lines: list[str] = []
    for subject, entries in facts.items():
        lines.append(subject)
        for name, value in entries.items():
            lines.extend(_entry(name, value))
    return "\n".join(lines)


def _entry(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        rows = [
            f"{key}={text}" if name == "set" else f"{key}: {text}" for key, text in value.items()
        ]
    elif isinstance(value, list):
        rows = [str(item) for item in value]
    else:
        return [f"  {name}: {'-' if value in (None, '') else value}"]
    return [f"  {name}:" + ("" if rows else " none"), *(f"    {row}" for row in rows)]


def _pjrt_version(path: Path) -> str:
    """The version of the PJRT C API that a plugin was built with; loads it, creates no client."""

    class Version(ctypes.Structure):
        _fields_ = (
            ("struct_size", ctypes.c_size_t),
            ("extension_start", ctypes.c_void_p),
            ("major", ctypes.c_int),
            ("minor", ctypes.c_int),
        )

    class Api(ctypes.Structure):
        _fields_ = (
            ("struct_size", ctypes.c_size_t),
            ("extension_start", ctypes.c_void_p),
            ("version", Version),
        )

    try:
        get = ctypes.CDLL(str(path)).GetPjrtApi
    except (OSError, AttributeError) as error:
        return f"not a plugin: {error}"
    get.restype = ctypes.POINTER(Api)
    version = get().contents.version
    return f"{version.major}.{version.minor}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
