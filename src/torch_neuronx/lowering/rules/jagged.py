"""Jagged rows, (total, ...) with offsets (B + 1), to padded ones, (B, L, ...), and back."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.dtypes import cast, dtype_name
from torch_neuronx.lowering.table import lowers


def _one(offsets: tuple[Any, ...]) -> Any:
    if len(offsets) != 1:
        raise ValueError(f"expected offsets of one jagged dimension, got {len(offsets)}")
    return offsets[0].astype(np.int64)


def _where(mask: Any, values: Any, other: Any) -> Any:
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(mask, values, other)


@lowers("aten::_jagged_to_padded_dense_forward", exact=True)
def jagged_to_padded(
    values: Any, offsets: tuple[Any, ...], max_lengths: tuple[int, ...], padding_value: Any = 0.0
) -> Any:
    """(total, ...) as (B, L, ...): row i of batch b is ``values[offsets[b] + i]``.

    Longer rows are cut off at L, shorter ones are filled up with ``padding_value``.
    """
    bounds = _one(offsets)
    place = bounds[:-1, None] + jnp.arange(max_lengths[0], dtype=np.int64)
    held = place < bounds[1:, None]
    padding = cast(padding_value, dtype_name(values))
    if values.shape[0] == 0:
        return jnp.broadcast_to(padding, place.shape + values.shape[1:])
    return _where(held, values[jnp.minimum(place, values.shape[0] - 1)], padding)


@lowers("aten::_padded_dense_to_jagged_forward", exact=True)
def padded_to_jagged(dense: Any, offsets: tuple[Any, ...], total_L: int | None = None) -> Any:
    """(B, L, ...) as (total_L, ...): the inverse. Places that no row of ``dense`` has are zero."""
    if total_L is None:
        raise ValueError("expected total_L, the number of jagged rows, to be given")
    bounds = _one(offsets)
    place = jnp.arange(total_L, dtype=np.int64)
    batch = jnp.searchsorted(bounds[1:], place, side="right").astype(np.int64)
    inside = batch < dense.shape[0]
    batch = jnp.minimum(batch, dense.shape[0] - 1)
    column = place - bounds[batch]
    inside = inside & (column >= 0) & (column < dense.shape[1])
    rows = dense[batch, jnp.clip(column, 0, dense.shape[1] - 1)]
    return _where(inside, rows, jnp.zeros((), dense.dtype))
