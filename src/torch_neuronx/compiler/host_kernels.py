"""Host kernels (decision D19): whether the plugin takes them, found out once a process.

A plugin may take a handler and fail later (decision D1), so a program that calls one is compiled
and run before any other may. Where that fails, programs are lowered without: the switch is reported
as unavailable, with the reason, and nothing else changes.
"""

from __future__ import annotations

import threading
import warnings

from torch_neuronx import _C, config
from torch_neuronx.compiler import options

_lock = threading.Lock()
_probed: tuple[tuple[str, ...], str] | None = None


def enabled() -> tuple[str, ...]:
    """Names of the handlers that programs may call: none unless TORCH_NEURONX_HOST_KERNELS is on.

    Starts the runtime. Warns once if they are asked for and not available.
    """
    return _state()[0]


def describe() -> str:
    """The state of the switch, for reports: "off", the handlers' names, or why there are none."""
    names, reason = _state()
    return ", ".join(names) or reason


def _state() -> tuple[tuple[str, ...], str]:
    global _probed
    if _probed is None and config.get("TORCH_NEURONX_HOST_KERNELS"):
        _C.platform()  # starts the runtime, which asks here itself: not while the lock is held
    with _lock:
        if _probed is None:
            _probed = _probe()
        return _probed


def _probe() -> tuple[tuple[str, ...], str]:
    if not config.get("TORCH_NEURONX_HOST_KERNELS"):
        return (), "off"
    platform = _C.platform()["platform_name"]
    if platform.lower() != "cpu":
        reason = f"the plugin's platform is {platform}, and they are kernels of the CPU"
    else:
        threads = config.get("TORCH_NEURONX_CPU_THREADS")
        reason = _C.enable_host_kernels(options.encode(options.EXACT_CPU), threads)
    if not reason:
        return tuple(_C.host_kernels()), ""
    warnings.warn(
        f"TORCH_NEURONX_HOST_KERNELS=1: host kernels are unavailable, the plugin's own code runs "
        f"instead: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
    return (), f"unavailable: {reason}"
