"""Sums, means and maxima of bags of embedding rows, with gradients.

A bag is a run of ``indices`` that starts at its offset. Entries equal to ``padding_idx`` count for
nothing. The four results are laid out as on CUDA: the output, the bag of each index, the size of
each bag (without padding), and for maxima the index that supplied each element.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers

_SUM, _MEAN, _MAX = 0, 1, 2


def _bags(offsets: Any, count: int, bags: int) -> Any:
    """The bag (int64) of each of ``count`` indices; ``bags`` or more past the last one."""
    starts = offsets.astype(np.int64)[:bags]
    place = jnp.arange(count, dtype=np.int64)
    # How many bags have started by then. Empty bags start where their successor does.
    started = jnp.zeros(count + 1, np.int64).at[jnp.clip(starts, 0, count)].add(1)
    return jnp.cumsum(started)[place] - 1


def _forward(
    weight: Any,
    indices: Any,
    offsets: Any,
    mode: int,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int,
    out: Any,
    checks: Checks,
) -> tuple[Any, Any, Any, Any]:
    dtype = op_math(out[0].dtype)
    bags, width = out[0].shape
    count, rows = indices.shape[0], weight.shape[0]
    place = indices.astype(np.int64)
    checks.require(
        (place >= 0) & (place < rows),
        place,
        "RuntimeError",
        "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {value}",
    )
    if offsets.shape[0]:
        starts = offsets.astype(np.int64)
        checks.require(
            starts[0] == 0,
            starts[0],
            "RuntimeError",
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            "position 0. However, got {value}",
        )
        checks.require(
            starts[-1] <= count,
            starts[-1],
            "RuntimeError",
            f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of "
            "{value}",
        )
    bag = _bags(offsets, count, bags)
    if include_last_offset:  # the last offset ends the last bag
        last = jnp.arange(count, dtype=np.int64) >= offsets.astype(np.int64)[-1]
        bag = jnp.where(last, bags, bag)
    kept = (bag >= 0) & (bag < bags)
    if padding_idx >= 0:
        kept &= place != padding_idx
    target = jnp.where(kept, bag, bags)
    sizes = jnp.zeros(bags + 1, np.int64).at[target].add(1)[:bags]
    if rows == 0 or count == 0:
        values = jnp.zeros((count, width), dtype)
    else:
        safe = jnp.clip(place, 0, rows - 1)
        values = cast(jnp.take(weight, safe, axis=0, mode="clip"), dtype)
    choice = jnp.zeros(out[3].shape, np.int64)
    if mode == _MAX:
        low = jnp.full((bags + 1, width), -np.inf, dtype)
        best = low.at[target].max(values)[:bags]
        # The first index of a bag whose row holds the maximum.
        order = jnp.broadcast_to(jnp.arange(count, dtype=np.int64)[:, None], (count, width))
        padded = jnp.concatenate([best, jnp.zeros((1, width), best.dtype)])
        hit = (values == padded[target]) & kept[:, None]
        first = jnp.full((bags + 1, width), count, np.int64)
        first = first.at[target].min(jnp.where(hit, order, count))[:bags]
        some = (sizes > 0)[:, None]
        result = jnp.where(some, best, jnp.zeros((), best.dtype))
        if count:
            found = jnp.take(place, jnp.minimum(first, count - 1), mode="clip")
            choice = jnp.where(some & (first < count), found, jnp.int64(0))
    else:
        if per_sample_weights is not None:
            values = values * cast(per_sample_weights, dtype)[:, None]
        result = jnp.zeros((bags + 1, width), dtype).at[target].add(values)[:bags]
        if mode == _MEAN:
            result = result / jnp.maximum(sizes, 1).astype(result.dtype)[:, None]
    size_out = jnp.zeros(out[2].shape, np.int64).at[:bags].set(sizes)
    bag = jnp.clip(bag, 0, max(bags - 1, 0))[: out[1].shape[0]]
    return result, bag, size_out, choice


def _forward_rule(name: str) -> None:
    @lowers(f"aten::{name}")
    def rule(
        weight: Any,
        indices: Any,
        offsets: Any,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: int = -1,
        *,
        out: Any,
        checks: Checks,
    ) -> tuple[Any, Any, Any, Any]:
        """Output, bag of each index, bag sizes, positions of maxima."""
        return _forward(
            weight, indices, offsets, mode, per_sample_weights, include_last_offset,
            padding_idx, out, checks,
        )  # fmt: skip


_forward_rule("_embedding_bag")
_forward_rule("_embedding_bag_forward_only")


@lowers("aten::_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    grad: Any,
    indices: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Any,
    padding_idx: int = -1,
    *,
    out: Any,
) -> Any:
    """Gradient of the table: each bag's gradient to the rows that it used."""
    dtype = op_math(out.dtype)
    g = cast(grad, dtype)
    rows = out.shape[0]
    if g.size == 0 or indices.size == 0 or 0 in out.shape:
        return jnp.zeros(out.shape, g.dtype)
    if mode == _MAX:
        # A bag without indices chose nothing, though its choice reads 0.
        some = (bag_size.astype(np.int64)[: g.shape[0]] > 0)[:, None]
        columns = lax.broadcasted_iota(np.int64, g.shape, 1)
        chosen = maximum_indices.astype(np.int64)
        values = jnp.where(some, g, jnp.zeros((), g.dtype))
        return jnp.zeros(out.shape, g.dtype).at[chosen, columns].add(values, mode="drop")
    place, bag = indices.astype(np.int64), offset2bag.astype(np.int64)
    values = jnp.take(g, bag, axis=0, mode="clip")
    if mode == _MEAN:
        size = jnp.take(bag_size.astype(np.int64), bag, mode="clip")
        values = values / jnp.maximum(size, 1).astype(g.dtype)[:, None]
    if per_sample_weights is not None:
        values = values * cast(per_sample_weights, dtype)[:, None]
    if scale_grad_by_freq:
        uses = jnp.zeros(rows, np.int64).at[place].add(1, mode="drop")
        often = jnp.maximum(jnp.take(uses, place, mode="clip"), 1)
        values = values / often.astype(g.dtype)[:, None]
    if padding_idx >= 0:
        place = jnp.where(place == padding_idx, rows, place)
    return jnp.zeros(out.shape, g.dtype).at[place].add(values, mode="drop")


@lowers("aten::_embedding_bag_per_sample_weights_backward")
def _embedding_bag_per_sample_weights_backward(
    grad: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    mode: int,
    padding_idx: int = -1,
    *,
    out: Any,
) -> Any:
    """Each weight's gradient: the bag's gradient times the row that the weight scaled."""
    dtype = op_math(out.dtype)
    if indices.size == 0 or weight.size == 0:
        return jnp.zeros(out.shape, dtype)
    place = indices.astype(np.int64)
    if offset2bag.shape[0] == indices.shape[0]:
        bag = offset2bag.astype(np.int64)
    else:
        bag = _bags(offsets, indices.shape[0], offsets.shape[0])
    g = jnp.take(cast(grad, dtype), bag, axis=0, mode="clip")
    rows = jnp.take(cast(weight, dtype), place, axis=0, mode="clip")
    total = jnp.sum(g * rows, axis=1)
    return jnp.where(place == padding_idx, jnp.zeros((), total.dtype), total)


@lowers("aten::_embedding_bag_backward")
def _embedding_bag_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int = -1,
    *,
    out: Any,
) -> Any:
    """Gradient of the table, in compiled graphs; always dense there."""
    if sparse:
        raise ValueError("embedding_bag(sparse=True): gradients in a compiled graph are dense")
    return _embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
        mode, per_sample_weights, padding_idx, out=out,
    )  # fmt: skip
