"""Reductions. Sums of reduced floats run in float32, of integers in int64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, is_complex, op_math
from torch_neuronx.lowering.table import lowers

Dims = tuple[int, ...] | int | None


def axes_of(dim: Dims, ndim: int) -> tuple[int, ...]:
    """Axes a ``dim`` argument names; None and the empty list mean all."""
    if dim is None or dim == ():
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else dim
    if ndim == 0:
        return ()
    return tuple(sorted(d % ndim for d in dims))


def count_of(x: Any, axes: tuple[int, ...]) -> int:
    """Elements that one result is made of."""
    return math.prod(x.shape[a] for a in axes)


def total(x: Any, axes: tuple[int, ...], keepdim: bool = False) -> Any:
    """Sum over axes in the dtype of ``x``."""
    return jnp.sum(x, axis=axes, dtype=x.dtype, keepdims=keepdim)


def _working(x: Any, dtype: str) -> Any:
    return cast(cast(x, dtype), op_math(dtype))


@lowers("aten::sum")
def sum_all(self: Any, dtype: str | None, *, out: Any) -> Any:
    """Sum of all elements."""
    return total(_working(self, out.dtype), axes_of(None, self.ndim))


@lowers("aten::sum.dim_IntList")
def sum_dim(self: Any, dim: Dims, keepdim: bool, dtype: str | None, *, out: Any) -> Any:
    """Sum over dims."""
    return total(_working(self, out.dtype), axes_of(dim, self.ndim), keepdim)


@lowers("aten::nansum")
def nansum(self: Any, dim: Dims, keepdim: bool, dtype: str | None, *, out: Any) -> Any:
    """Sum over dims, nan counted as zero."""
    x = jnp.where(self != self, jnp.zeros_like(self), self)
    return total(_working(x, out.dtype), axes_of(dim, self.ndim), keepdim)


def _mean(x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    return total(x, axes, keepdim) / jnp.asarray(count_of(x, axes), x.dtype)


@lowers("aten::mean")
def mean_all(self: Any, dtype: str | None, *, out: Any) -> Any:
    """Mean of all elements."""
    return _mean(_working(self, out.dtype), axes_of(None, self.ndim), False)


@lowers("aten::mean.dim")
def mean_dim(self: Any, dim: Dims, keepdim: bool, dtype: str | None, *, out: Any) -> Any:
    """Mean over dims."""
    return _mean(_working(self, out.dtype), axes_of(dim, self.ndim), keepdim)


@lowers("aten::prod")
def prod_all(self: Any, dtype: str | None, *, out: Any) -> Any:
    """Product of all elements."""
    x = _working(self, out.dtype)
    return jnp.prod(x, dtype=x.dtype) if x.dtype != np.bool_ else jnp.all(x)


@lowers("aten::prod.dim_int")
def prod_dim(self: Any, dim: int, keepdim: bool, dtype: str | None, *, out: Any) -> Any:
    """Product over a dim."""
    x, axes = _working(self, out.dtype), axes_of(dim, self.ndim)
    if x.dtype == np.bool_:
        return jnp.all(x, axis=axes, keepdims=keepdim)
    return jnp.prod(x, axis=axes, dtype=x.dtype, keepdims=keepdim)


def _moments(self: Any, dim: Dims, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean, in two passes."""
    axes = axes_of(dim, self.ndim)
    x = cast(self, op_math(dtype_name(self)))
    mean = _mean(x, axes, True)
    centred = x - mean
    free = max(count_of(x, axes) - (1 if correction is None else correction), 0)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        square = centred.real * centred.real + centred.imag * centred.imag
        free = free or np.nan  # CPU divides a complex number by zero
    else:
        square = centred * centred
    variance = total(square, axes, keepdim) / jnp.asarray(free, square.dtype)
    return variance, mean if keepdim else mean.reshape(variance.shape)


_CORRECTION = ("correction",)


@lowers("aten::var.correction", static=_CORRECTION)
def var(self: Any, dim: Dims, correction: Any, keepdim: bool) -> Any:
    """Variance over dims, divided by count minus correction."""
    return _moments(self, dim, correction, keepdim)[0]


@lowers("aten::std.correction", static=_CORRECTION)
def std(self: Any, dim: Dims, correction: Any, keepdim: bool) -> Any:
    """Square root of the variance."""
    return lax.sqrt(_moments(self, dim, correction, keepdim)[0])


@lowers("aten::var_mean.correction", static=_CORRECTION)
def var_mean(self: Any, dim: Dims, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean."""
    return _moments(self, dim, correction, keepdim)


@lowers("aten::std_mean.correction", static=_CORRECTION)
def std_mean(self: Any, dim: Dims, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Standard deviation and mean."""
    variance, mean = _moments(self, dim, correction, keepdim)
    return lax.sqrt(variance), mean


def _extreme(self: Any, dim: Dims, keepdim: bool, largest: bool) -> Any:
    """Maximum or minimum; nan wins."""
    reduce = jnp.max if largest else jnp.min
    return reduce(self, axis=axes_of(dim, self.ndim), keepdims=keepdim)


@lowers("aten::amax", exact=True)
def amax(self: Any, dim: Dims, keepdim: bool) -> Any:
    """Maximum over dims."""
    return _extreme(self, dim, keepdim, True)


@lowers("aten::amin", exact=True)
def amin(self: Any, dim: Dims, keepdim: bool) -> Any:
    """Minimum over dims."""
    return _extreme(self, dim, keepdim, False)


@lowers("aten::_aminmax", exact=True)
def _aminmax(self: Any) -> tuple[Any, Any]:
    """Minimum and maximum of all elements."""
    return _extreme(self, None, False, False), _extreme(self, None, False, True)


@lowers("aten::_aminmax.dim", exact=True)
def _aminmax_dim(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Minimum and maximum over a dim."""
    return _extreme(self, (dim,), keepdim, False), _extreme(self, (dim,), keepdim, True)


@lowers("aten::aminmax", exact=True)
def aminmax(self: Any, dim: Dims, keepdim: bool) -> tuple[Any, Any]:
    """Minimum and maximum."""
    return _extreme(self, dim, keepdim, False), _extreme(self, dim, keepdim, True)


@lowers("aten::max", exact=True)
def max_all(self: Any) -> Any:
    """Maximum of all elements."""
    return _extreme(self, None, False, True)


@lowers("aten::min", exact=True)
def min_all(self: Any) -> Any:
    """Minimum of all elements."""
    return _extreme(self, None, False, False)


def _position(self: Any, dim: int | None, keepdim: bool, largest: bool) -> Any:
    """int64 index of the first extreme; the first nan wins."""
    x = self.astype(np.uint8) if self.dtype == np.bool_ else self
    find = lax.argmax if largest else lax.argmin
    if dim is None or x.ndim == 0:
        shape = [1] * self.ndim if keepdim else []
        return find(x.reshape(-1), 0, np.int64).reshape(shape)
    index = find(x, dim % x.ndim, np.int64)
    return jnp.expand_dims(index, dim % x.ndim) if keepdim else index


@lowers("aten::argmax", exact=True)
def argmax(self: Any, dim: int | None, keepdim: bool) -> Any:
    """Index of the maximum."""
    return _position(self, dim, keepdim, True)


@lowers("aten::argmin", exact=True)
def argmin(self: Any, dim: int | None, keepdim: bool) -> Any:
    """Index of the minimum."""
    return _position(self, dim, keepdim, False)


@lowers("aten::max.dim", exact=True)
def max_dim(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Maximum over a dim and its index."""
    return _extreme(self, dim, keepdim, True), _position(self, dim, keepdim, True)


@lowers("aten::min.dim", exact=True)
def min_dim(self: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Minimum over a dim and its index."""
    return _extreme(self, dim, keepdim, False), _position(self, dim, keepdim, False)


def _register_logic(name: str, function: Callable[..., Any]) -> None:
    @lowers(f"aten::{name}", exact=True)
    def full(self: Any) -> Any:
        return function(self != 0)

    @lowers(f"aten::{name}.dim", exact=True)
    def one(self: Any, dim: int, keepdim: bool) -> Any:
        return function(self != 0, axis=axes_of(dim, self.ndim), keepdims=keepdim)

    @lowers(f"aten::{name}.dims", exact=True)
    def many(self: Any, dim: Dims, keepdim: bool) -> Any:
        if dim == ():  # unlike the other reductions, no dims here means none
            return self != 0
        return function(self != 0, axis=axes_of(dim, self.ndim), keepdims=keepdim)


_register_logic("any", jnp.any)
_register_logic("all", jnp.all)


@lowers("aten::count_nonzero.dim_IntList", "aten::count_nonzero", exact=True)
def count_nonzero(self: Any, dim: Dims) -> Any:
    """Number of elements that are not zero."""
    return total((self != 0).astype(np.int64), axes_of(dim, self.ndim))


def vector_norm(x: Any, order: float, axes: tuple[int, ...], keepdim: bool) -> Any:
    """p-norm over axes of ``x``, which has the dtype of the computation."""
    size = lax.abs(x)
    if order == 2:
        return lax.sqrt(total(size * size, axes, keepdim))
    if order == 1:
        return total(size, axes, keepdim)
    if order == 0:
        return total((size != 0).astype(size.dtype), axes, keepdim)
    if math.isinf(order):
        reduce = jnp.max if order > 0 else jnp.min
        if count_of(x, axes) == 0:
            return total(size, axes, keepdim)
        return reduce(size, axis=axes, keepdims=keepdim)
    powers = total(lax.pow(size, jnp.asarray(order, size.dtype)), axes, keepdim)
    return lax.pow(powers, jnp.asarray(1.0 / order, size.dtype))


def _norm(self: Any, order: Any, dim: Dims, keepdim: bool, dtype: str | None, out: Any) -> Any:
    name = dtype or dtype_name(self)
    if dtype is None and not is_complex(name):
        name = out.dtype
    order = 2.0 if order is None else float(order)
    return vector_norm(_working(self, name), order, axes_of(dim, self.ndim), keepdim)


def _chooses(self: Any, order: Any, *_: Any) -> bool:
    """Infinite orders give the size of an element, which backward looks for."""
    return order is not None and math.isinf(order) and not is_complex(dtype_name(self))


@lowers("aten::linalg_vector_norm", static=("ord",), selects=_chooses)
def linalg_vector_norm(
    self: Any, ord: Any, dim: Dims, keepdim: bool, dtype: str | None, *, out: Any
) -> Any:
    """p-norm over dims."""
    return _norm(self, ord, dim, keepdim, dtype, out)


@lowers("aten::norm.Scalar", static=("p",), selects=_chooses)
def norm(self: Any, p: Any, *, out: Any) -> Any:
    """p-norm of all elements."""
    return _norm(self, p, None, False, None, out)


@lowers("aten::norm.ScalarOpt_dtype", static=("p",), selects=_chooses)
def norm_dtype(self: Any, p: Any, dtype: str, *, out: Any) -> Any:
    """p-norm of all elements, computed in ``dtype``."""
    return _norm(self, p, None, False, dtype, out)


@lowers("aten::norm.ScalarOpt_dim", static=("p",), selects=_chooses)
def norm_dim(self: Any, p: Any, dim: Dims, keepdim: bool, *, out: Any) -> Any:
    """p-norm over dims."""
    return _norm(self, p, dim, keepdim, None, out)


@lowers("aten::norm.ScalarOpt_dim_dtype", static=("p",), selects=_chooses)
def norm_dim_dtype(self: Any, p: Any, dim: Dims, keepdim: bool, dtype: str, *, out: Any) -> Any:
    """p-norm over dims, computed in ``dtype``."""
    return _norm(self, p, dim, keepdim, dtype, out)


@lowers("aten::dist", static=("p",))
def dist(self: Any, other: Any, p: Any, *, out: Any) -> Any:
    """p-norm of the difference."""
    wide = "complex64" if dtype_name(self).startswith("complex") else out.dtype
    x = _working(self, wide) - _working(other, wide)
    return vector_norm(x, float(p), axes_of(None, x.ndim), False)


@lowers("aten::logsumexp")
def logsumexp(self: Any, dim: Dims, keepdim: bool, *, out: Any) -> Any:
    """log of the sum of exp over dims, shifted by the maximum."""
    axes = axes_of(dim, self.ndim)
    x = cast(self, op_math(out.dtype))
    if count_of(x, axes) == 0:
        return lax.log(total(x, axes, keepdim))
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        top = jnp.max(x.real, axis=axes, keepdims=True)
    else:
        top = jnp.max(x, axis=axes, keepdims=True)
    top = jnp.where(jnp.isinf(top), jnp.zeros_like(top), top)
    result = lax.log(total(lax.exp(x - top), axes, True)) + top
    return result if keepdim else jnp.squeeze(result, axes)


@lowers("aten::trace")
def trace(self: Any, *, out: Any) -> Any:
    """Sum of the diagonal."""
    return total(_working(jnp.diagonal(self), out.dtype), (0,))
