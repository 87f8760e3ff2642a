"""Which way eager operators run (decision D12)."""

from __future__ import annotations

import functools
import warnings

from torch_neuronx import _C, config

MODES = {
    "per-op": _C.EagerMode.PER_OP,
    "adaptive": _C.EagerMode.ADAPTIVE,
    "blocking": _C.EagerMode.BLOCKING,
}
_FIRST_EXACT = (0, 115)  # of the PJRT versions of XLA's CPU plugins that were tried (decision 45)


def mode_of(name: str) -> _C.EagerMode:
    """The mode of a name in ``MODES``; one by one where adaptive eager would not be exact.

    The runtime must have been started.
    """
    if name == "adaptive" and not _keeps_bits() and not config.get("TORCH_NEURONX_FUSE_REDUCTIONS"):
        _say()
        return _C.EagerMode.PER_OP
    return MODES[name]


def _keeps_bits() -> bool:
    """Whether the plugin's compiler keeps optimization barriers until it has fused."""
    platform = _C.platform()
    if platform["platform_name"] != "cpu":
        return True
    return tuple(map(int, platform["pjrt_version"].split("."))) >= _FIRST_EXACT


@functools.cache
def _say() -> None:
    version = ".".join(map(str, _FIRST_EXACT))
    warnings.warn(
        "adaptive eager is off: operators run one by one. The compiler of this plugin (cpu, PJRT "
        f"{_C.platform()['pjrt_version']}) fuses across optimization barriers, so that results "
        f"would differ in the last bits. Expected PJRT {version} or newer; "
        "TORCH_NEURONX_FUSE_REDUCTIONS=1 accepts other bits. This is said once.",
        stacklevel=2,
    )
