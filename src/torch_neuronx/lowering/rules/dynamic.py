"""Operators whose result's shape depends on data, once the size is known.

csrc/torch/dispatch/dynamic.cc counts on the device first and calls these with the count.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.table import lowers


@lowers("aten::nonzero_static", exact=True)
def nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    """Positions of the first ``size`` non-zero elements, int64 of shape (size, dimensions)."""
    if self.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    found = jnp.nonzero(self, size=size, fill_value=fill_value)
    return jnp.stack([f.astype(np.int64) for f in found], axis=-1)


@lowers("aten::repeat_interleave.Tensor", exact=True)
def repeat_interleave(
    repeats: Any, output_size: int | None = None, *, out: Any, checks: Checks
) -> Any:
    """Position i of ``repeats`` repeated repeats[i] times; ``out`` has their sum's length."""
    output_size = out.shape[0]
    counts = repeats.astype(np.int64)
    checks.require(counts >= 0, counts, "RuntimeError", "repeats can not be negative")
    ends = jnp.cumsum(counts)
    checks.require(
        ends[-1] == output_size,
        ends[-1],
        "RuntimeError",
        "allocated size does not match required size",
    )
    place = jnp.arange(output_size, dtype=np.int64)
    return jnp.minimum(jnp.searchsorted(ends, place, side="right"), counts.shape[0] - 1)
