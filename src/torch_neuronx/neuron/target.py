"""Target profiles: what the device that is modelled looks like (decision D7).

``e4m3_max``: the largest finite value of its float8_e4m3fn. Trainium2's e4m3 is the format with
infinities, whose largest is 240; both formats have the same bits up to there.

Figures are of one logical core. A profile is a model: reports name it as one.
"""

from __future__ import annotations

import dataclasses

from torch_neuronx import config

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Target:
    """One profile."""

    name: str
    description: str
    hbm_bytes: int
    exact_float64: bool
    e4m3_max: int


TARGETS = {
    "trn2": Target("trn2", "model of a Trainium2 logical core", 24 * GIB, False, 240),
    "trn3": Target("trn3", "model of a Trainium3 logical core", 36 * GIB, False, 448),
    "host": Target("host", "this machine, float64 exact", 24 * GIB, True, 448),
}


def current() -> Target:
    """The chosen profile (``TORCH_NEURONX_TARGET``)."""
    return TARGETS[config.get("TORCH_NEURONX_TARGET")]


def exact_float64() -> bool:
    """Whether float64 arithmetic is done in float64 (decision D6)."""
    return current().exact_float64 or config.get("TORCH_NEURONX_FLOAT64") == "exact"
