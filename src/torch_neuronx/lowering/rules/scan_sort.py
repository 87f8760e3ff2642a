"""Cumulative operations, and everything that sorts.

Sorting is stable and puts nan last ascending, first descending; equal elements keep their order
either way. (PyTorch promises order only for ``stable=True``; here it always holds.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering import handlers
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.rules.pointwise import logaddexp
from torch_neuronx.lowering.table import lowers

_SORT, _TOPK = "torchneuron.sort", "torchneuron.topk"


def _cumulative(name: str, scan: Callable[..., Any]) -> None:
    @lowers(f"aten::{name}")
    def rule(self: Any, dim: int, dtype: str | None = None, *, out: Any) -> Any:
        x = cast(cast(self, out.dtype), op_math(out.dtype))
        return x if x.ndim == 0 or x.size == 0 else scan(x, dim % x.ndim)


_cumulative("cumsum", lax.cumsum)
_cumulative("cumprod", lax.cumprod)


@lowers("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(self: Any, dim: int, *, out: Any) -> Any:
    """log of the running sum of exp."""
    x = cast(self, op_math(out.dtype))
    if x.ndim == 0 or x.size == 0:
        return x
    axis = dim % x.ndim
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.associative_scan(logaddexp, x, axis=axis)

    # The imaginary part counts the turns made on the way, so the order matters.
    def step(total: Any, element: Any) -> tuple[Any, Any]:
        total = logaddexp(element, total)
        return total, total

    rows = jnp.moveaxis(x, axis, 0)
    rest = lax.scan(step, rows[0], rows[1:])[1]
    return jnp.moveaxis(jnp.concatenate([rows[:1], rest]), 0, axis)


def _is_nan(x: Any) -> Any:
    return x != x


def _running(name: str, better: Callable[[Any, Any], Any]) -> None:
    """cummax and cummin: of equal elements the last one's index, and nan stays."""

    def combine(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        take = _is_nan(b[0]) | (~_is_nan(a[0]) & better(b[0], a[0]))
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    @lowers(f"aten::{name}", exact=True)
    def rule(self: Any, dim: int) -> Any:
        if self.ndim == 0 or self.size == 0:
            return self, jnp.zeros(self.shape, np.int64)
        axis = dim % self.ndim
        index = lax.broadcasted_iota(np.int64, self.shape, axis)
        return lax.associative_scan(combine, (self, index), axis=axis)


_running("cummax", jnp.greater_equal)
_running("cummin", jnp.less_equal)


def sort_with_index(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Sorted values and their int64 positions, stable."""
    if x.ndim == 0 or x.size == 0:
        return x, jnp.zeros(x.shape, np.int64)
    axis = dim % x.ndim
    if handlers.takes(_SORT, x):
        results = [(x.shape, x.dtype), (x.shape, np.int64)]
        values, index = handlers.call(_SORT, results, x, dim=axis, descending=int(descending))
        return values, index
    index = lax.broadcasted_iota(np.int64, x.shape, axis)
    key = x.astype(np.uint8) if x.dtype == np.bool_ else x
    if descending:  # the reverse of the reverse keeps equal elements in order
        key, index = lax.rev(key, (axis,)), lax.rev(index, (axis,))
    key, index = lax.sort((key, index), dimension=axis, is_stable=True, num_keys=1)
    if descending:
        key, index = lax.rev(key, (axis,)), lax.rev(index, (axis,))
    return key.astype(x.dtype), index


@lowers("aten::sort", exact=True)
def sort(self: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Values and indices."""
    return sort_with_index(self, dim, descending)


@lowers("aten::sort.stable", exact=True)
def sort_stable(self: Any, stable: bool | None, dim: int, descending: bool) -> tuple[Any, Any]:
    """Values and indices."""
    return sort_with_index(self, dim, descending)


@lowers("aten::topk", exact=True)
def topk(self: Any, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Any, Any]:
    """The k largest or smallest, always in order.

    Which of several equal elements comes first is not said; in portable code, the first one.
    """
    if self.ndim == 0:
        return sort_with_index(self, dim, largest)  # also for k = 0, as in PyTorch
    axis = dim % self.ndim
    shape = (*self.shape[:axis], k, *self.shape[axis + 1 :])
    if k == 0:
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, np.int64)
    if handlers.takes(_TOPK, self):
        results = [(shape, self.dtype), (shape, np.int64)]
        values, index = handlers.call(_TOPK, results, self, dim=axis, largest=int(largest))
        return values, index
    values, index = sort_with_index(self, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(index, 0, k, axis=axis)


def _pick(x: Any, place: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Element ``place`` (int, or array of size 1 along dim) of sorted ``x``, and its index."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    values, index = sort_with_index(x, dim, False)
    if isinstance(place, int):
        picked = [lax.slice_in_dim(v, place, place + 1, axis=axis) for v in (values, index)]
    else:
        picked = [jnp.take_along_axis(v, place, axis=axis, mode="clip") for v in (values, index)]
    return tuple(p if keepdim else jnp.squeeze(p, axis) for p in picked)  # type: ignore[return-value]


@lowers("aten::kthvalue", exact=True)
def kthvalue(self: Any, k: int, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The k-th smallest, counted from one."""
    return _pick(self, k - 1, dim, keepdim)


def _median(x: Any, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Any, Any]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    axis = dim % x.ndim
    size = x.shape[axis]
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _pick(x, (size - 1) // 2, dim, keepdim)
    nans = jnp.sum(_is_nan(x), axis=axis, keepdims=True, dtype=np.int64)
    if ignore_nan:
        return _pick(x, jnp.maximum(size - nans - 1, 0) // 2, dim, keepdim)
    # nan sorts last; the first of them is the median of a row that has any.
    return _pick(x, jnp.where(nans > 0, size - nans, (size - 1) // 2), dim, keepdim)


@lowers("aten::median", exact=True)
def median(self: Any) -> Any:
    """Lower median of all elements; nan if any is."""
    return _median_all(self, False)


@lowers("aten::nanmedian", exact=True)
def nanmedian(self: Any) -> Any:
    """Lower median of the elements that are numbers."""
    return _median_all(self, True)


def _median_all(x: Any, ignore_nan: bool) -> Any:
    if x.size == 0:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(np.nan if floating else jnp.iinfo(x.dtype).min, x.dtype)
    return _median(x.reshape(-1), 0, False, ignore_nan)[0]


@lowers("aten::median.dim", exact=True)
def median_dim(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Lower median over a dim and its index."""
    return _median(self, dim, keepdim, False)


@lowers("aten::nanmedian.dim", exact=True)
def nanmedian_dim(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Lower median of the numbers over a dim and its index."""
    return _median(self, dim, keepdim, True)


@lowers("aten::mode", exact=True)
def mode(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The smallest of the most frequent values and the index of its last occurrence."""
    if self.ndim == 0:
        return self, jnp.zeros((), np.int64)
    axis = dim % self.ndim
    values, index = sort_with_index(self, dim, False)
    place = lax.broadcasted_iota(np.int64, values.shape, axis)
    before = jnp.roll(values, 1, axis)
    start = jnp.where((place == 0) | (values != before), place, jnp.zeros_like(place))
    run = place - lax.cummax(start, axis)
    best = lax.argmax(run, axis, np.int64)
    # The run's first position of maximal length is its last element.
    picked = [
        jnp.take_along_axis(v, jnp.expand_dims(best, axis), axis=axis, mode="clip")
        for v in (values, index)
    ]
    return tuple(p if keepdim else jnp.squeeze(p, axis) for p in picked)  # type: ignore[return-value]
