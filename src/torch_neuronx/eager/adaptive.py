"""Modes of eager execution, and what adaptive eager did (decision D12)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch_neuronx import _C
from torch_neuronx.neuron.eager_modes import MODES, mode_of


@contextlib.contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Within the block, eager operators of all threads run this way."""
    if mode not in MODES:
        raise ValueError(f"eager_mode: expected one of {', '.join(MODES)}, got {mode!r}")
    _C.runtime_init()  # starting sets the mode of TORCH_NEURONX_EAGER
    before = _C.eager_mode()
    _C.set_eager_mode(mode_of(mode))
    try:
        yield
    finally:
        _C.set_eager_mode(before)


def eager_stats(device: int | None = None) -> dict[str, Any]:
    """Counts of a device; see ``torch_neuronx.eager_stats``."""
    return _C.eager_stats(_C.current_device() if device is None else device)
