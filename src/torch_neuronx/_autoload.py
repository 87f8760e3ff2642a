"""Registration under checks (decision D15): light, and it changes nothing unless it is safe.

``autoload`` is called by torch's entry point at the end of ``import torch`` and by
``torch_neuronx/__init__.py`` as its last statement; whoever comes first registers. It calls
``torch_neuronx._register()`` unless another distribution owns our import names, PrivateUse1 is
renamed already, or torch's minor version is not the one that the extension was built for. Then it
warns once (RuntimeWarning) and keeps the reason in ``status`` for ``torchneuron info``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Iterable

from torchneuron_autoload import warn

OWN_DISTRIBUTION = "torchneuron"
IMPORT_NAMES = ("torch_neuronx", "nki")
# Distributions known to own those names, whatever their metadata lists.
FOREIGN_DISTRIBUTIONS = ("torch-neuronx", "nki")


@dataclasses.dataclass
class Status:
    """Where registration stands.

    ``state`` is "pending" (not tried), "deferred" (``torch_neuronx`` is being imported and will
    register when it is complete), "registered", "refused" (a check spoke against it) or "failed"
    (``torch_neuronx._register`` raised); ``reason`` says why for the last two.
    """

    state: str = "pending"
    reason: str = ""


status = Status()


def autoload() -> None:
    """Registers the device ``neuron`` once, or warns once. Never raises an Exception."""
    # Before anything is decided: if torch is not imported yet, this import fires the entry point,
    # which comes back here and registers.
    import torch  # noqa: F401

    if status.state not in ("pending", "deferred"):
        return
    try:
        reason = refusal()
        if reason is None:
            _register()
            return
        status.state, status.reason = "refused", reason
    except Exception as error:
        status.state, status.reason = "failed", f"{type(error).__name__}: {error}"
    warn(
        f"torchneuron: device 'neuron' is not registered: {status.reason} "
        "(`torchneuron info` shows this again)"
    )


def _register() -> None:
    import torch_neuronx

    register = getattr(torch_neuronx, "_register", None)
    spec = torch_neuronx.__spec__
    if register is None and spec is not None and getattr(spec, "_initializing", False):
        status.state = "deferred"
        return
    if register is None:
        raise ImportError("torch_neuronx has no function _register; reinstall torchneuron")
    register()
    status.state = "registered"


def refusal() -> str | None:
    """Why the device must not be registered here, or None."""
    return _foreign_owner(sys.path) or _foreign_rename() or _foreign_torch()


def _foreign_rename() -> str | None:
    import torch

    name = torch._C._get_privateuse1_backend_name()
    if name == "privateuseone":
        return None
    return (
        f"PrivateUse1 is renamed to '{name}' already, and torch has one such device per process. "
        "Uninstall that backend or switch autoloading off (TORCH_DEVICE_BACKEND_AUTOLOAD=0)."
    )


def built_for() -> str | None:
    """The version of torch that the extension was built against, or None if it is not built."""
    try:
        return str(importlib.import_module("torch_neuronx._build_info").TORCH_VERSION)
    except ImportError:
        return None


def _foreign_torch() -> str | None:
    import torch

    built = built_for()
    if built is None:
        return (
            "the extension module is not built. Run `pip install --no-build-isolation -e .` "
            "(or `make env`) in the checkout."
        )
    if _minor(torch.__version__) == _minor(built):
        return None
    return (
        f"it was built for torch {_minor(built)}.*, this is torch {torch.__version__}. "
        f"Install torch=={_minor(built)}.* or rebuild torchneuron against this torch."
    )


def _minor(version: str) -> str:
    return ".".join(str(version).split(".")[:2])


def _foreign_owner(paths: Iterable[str]) -> str | None:
    """Looks for other distributions that own our import names.

    Scans metadata folders by hand: ``importlib.metadata.packages_distributions`` parses every
    RECORD (torch's has 13,000 lines) and takes longer than our whole budget. ``top_level.txt`` is
    read where there is one; RECORD only where there is none and the name suggests a relation.
    """
    for path in dict.fromkeys(paths):
        try:
            entries = os.listdir(path or ".")
        except OSError:
            continue  # zip files and folders that do not exist
        for entry in entries:
            if not entry.endswith((".dist-info", ".egg-info")):
                continue
            name = re.sub(r"[-_.]+", "-", entry.rsplit(".", 1)[0].split("-")[0]).lower()
            if name == OWN_DISTRIBUTION:
                continue
            folder = os.path.join(path, entry)
            owned = IMPORT_NAMES if name in FOREIGN_DISTRIBUTIONS else _owned(folder, name)
            if owned:
                return (
                    f"distribution '{name}' ({folder}) owns the import name {owned[0]}. Uninstall "
                    "one of the two, or use separate environments."
                )
    return None


def _owned(folder: str, name: str) -> tuple[str, ...]:
    """Those of our import names that the distribution with this metadata folder installs."""
    top_level = _read(os.path.join(folder, "top_level.txt"))
    if top_level is not None:
        return tuple(n for n in IMPORT_NAMES if n in top_level.split())
    if "neuron" not in name and "nki" not in name:
        return ()
    record = _read(os.path.join(folder, "RECORD")) or ""
    return tuple(n for n in IMPORT_NAMES if re.search(rf"^{n}/", record, re.MULTILINE))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
