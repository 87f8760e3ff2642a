"""Reductions over runs of one dimension whose lengths are data, with gradients.

Every element's segment is found first; then sums, products, minima and maxima are scatters.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


class _Segments:
    """Data as (outer, length, inner) and for each element its segment, ``count`` for none."""

    def __init__(self, data: Any, lengths: Any, offsets: Any, axis: int) -> None:
        self.outer = math.prod(data.shape[:axis])
        self.length = data.shape[axis]
        self.inner = math.prod(data.shape[axis + 1 :])
        if lengths is not None:
            sizes = lengths.reshape(self.outer, lengths.shape[axis]).astype(np.int64)
            ends = jnp.cumsum(sizes, axis=1)
            starts = ends - sizes
        else:
            bounds = offsets.reshape(self.outer, offsets.shape[axis]).astype(np.int64)
            starts, ends = bounds[:, :-1], bounds[:, 1:]
        self.sizes = ends - starts
        self.count = self.sizes.shape[1]
        place = jnp.arange(self.length, dtype=np.int64)[None, :, None]
        held = (place >= starts[:, None, :]) & (place < ends[:, None, :])
        if self.count == 0:
            self.of = jnp.zeros((self.outer, self.length), np.int64)
        else:
            found = jnp.argmax(held, axis=2).astype(np.int64)
            self.of = jnp.where(jnp.any(held, axis=2), found, self.count)
        self.rows = jnp.arange(self.outer, dtype=np.int64)[:, None]

    def flat(self, data: Any) -> Any:
        return data.reshape(self.outer, self.length, self.inner)

    def base(self, value: Any, dtype: Any) -> Any:
        shape = (self.outer, self.count + 1, self.inner)
        return jnp.broadcast_to(jnp.asarray(value, dtype), shape)

    def spread(self, values: Any) -> Any:
        """One row a segment (outer, count, inner) as one row an element; zeros for none."""
        pad = jnp.zeros((self.outer, 1, values.shape[2]), values.dtype)
        return jnp.concatenate([values, pad], axis=1)[self.rows, self.of]

    def total(self, values: Any) -> Any:
        """Sums of element rows by segment."""
        return self.base(0, values.dtype).at[self.rows, self.of].add(values)[:, : self.count]

    def product(self, values: Any) -> Any:
        """Products of element rows by segment."""
        return self.base(1, values.dtype).at[self.rows, self.of].multiply(values)[:, : self.count]


@lowers("aten::segment_reduce")
def segment_reduce(
    data: Any,
    reduce: str,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """Each segment's sum, mean, product, minimum or maximum.

    ``initial`` takes part in every segment. Without it an empty one gives 0, nan, 1, inf, -inf.
    """
    dtype = op_math(out.dtype)
    segments = _Segments(data, lengths, offsets, axis)
    if lengths is not None and not unsafe:
        sizes = segments.sizes
        checks.require(sizes >= 0, sizes, "RuntimeError", "lengths contains negative value!")
        sums = jnp.sum(sizes, axis=1)
        checks.require(
            sums == segments.length,
            sums,
            "RuntimeError",
            "segment_reduce(): Expected all rows of lengths along axis to sum to "
            "data.size(lengths.dim()-1) when !unsafe.",
        )
    x = segments.flat(cast(data, dtype))
    start = _START[reduce] if initial is None else cast(initial, dtype)
    at = segments.base(start, x.dtype).at[segments.rows, segments.of]
    if reduce == "max":
        result = at.max(x)
    elif reduce == "min":
        result = at.min(x)
    elif reduce == "prod":
        result = at.multiply(x)
    else:
        result = at.add(x)
    result = result[:, : segments.count]
    if reduce == "mean":
        sizes = segments.sizes[:, :, None].astype(x.dtype)
        empty = jnp.asarray(np.nan, x.dtype) if initial is None else result
        result = jnp.where(sizes > 0, result / jnp.maximum(sizes, 1), empty)
    return result.reshape(out.shape)


@lowers("aten::_segment_reduce_backward")
def _segment_reduce_backward(
    grad: Any,
    output: Any,
    data: Any,
    reduce: str,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
    *,
    out: Any,
) -> Any:
    """Gradient of the data; elements equal to an extreme share a positive gradient."""
    dtype = op_math(out.dtype)
    if 0 in out.shape:
        return jnp.zeros(out.shape, dtype)
    segments = _Segments(data, lengths, offsets, axis)
    x = segments.flat(cast(data, dtype))
    shape = (segments.outer, segments.count, segments.inner)
    g, result = (cast(a, dtype).reshape(shape) for a in (grad, output))
    zero = jnp.zeros((), x.dtype)
    if reduce == "sum":
        answer = segments.spread(g)
    elif reduce == "mean":
        sizes = jnp.maximum(segments.sizes, 1)[:, :, None].astype(x.dtype)
        answer = segments.spread(g / sizes)
    elif reduce == "prod":
        answer = _product_backward(segments, x, g, result, initial)
    else:
        nan = x != x
        hit = nan | (x == segments.spread(result))
        share = jnp.maximum(segments.total(hit.astype(x.dtype)), 1)
        # PyTorch's kernels, CPU's and CUDA's, divide positive gradients alone.
        answer = jnp.where(hit, segments.spread(jnp.where(g > 0, g / share, g)), zero)
    live = (segments.of < segments.count)[:, :, None]
    return jnp.where(live, answer, zero).reshape(out.shape)


def _product_backward(segments: _Segments, x: Any, g: Any, result: Any, initial: Any) -> Any:
    """grad * output / x, and where x is zero or nan the product of the others."""
    one, zero = jnp.ones((), x.dtype), jnp.zeros((), x.dtype)
    nan, null = x != x, x == 0
    rest = segments.product(jnp.where(nan | null, one, x))
    if initial is not None:
        rest = rest * cast(initial, np.dtype(x.dtype).name)
    nans = segments.spread(segments.total(nan.astype(x.dtype))) - nan.astype(x.dtype)
    nulls = segments.spread(segments.total(null.astype(x.dtype))) - null.astype(x.dtype)
    others = jnp.where(nulls > 0, zero, segments.spread(rest))
    others = jnp.where(nans > 0, jnp.asarray(np.nan, x.dtype), others)
    plain = segments.spread(g * result) / jnp.where(nan | null, one, x)
    return jnp.where(nan | null, segments.spread(g) * others, plain)
