"""p-norm distances between rows, of two sets (cdist) and within one (pdist), with gradients.

``p`` is static: 0 counts differences, infinity takes the largest, 1 and 2 have forms of their own.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.table import lowers


def _norm(difference: Any, p: float) -> Any:
    """p-norm over the last dimension."""
    x = jnp.abs(difference)
    if p == 0:
        return jnp.sum((x != 0).astype(x.dtype), axis=-1)
    if p == 1:
        return jnp.sum(x, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(x * x, axis=-1))
    if math.isinf(p):
        return jnp.max(x, axis=-1) if x.shape[-1] else jnp.zeros(x.shape[:-1], x.dtype)
    return jnp.sum(x**p, axis=-1) ** (1 / p)


def _slope(difference: Any, distance: Any, p: float) -> Any:
    """Gradient of the p-norm by the difference; ``distance`` has a last dimension of one."""
    x = difference
    zero = jnp.zeros((), x.dtype)
    apart = distance != 0
    safe = jnp.where(apart, distance, jnp.ones((), x.dtype))
    if p == 0:
        return jnp.zeros_like(x)
    if p == 1:
        return jnp.sign(x)
    if p == 2:
        return jnp.where(apart, x / safe, zero)
    if math.isinf(p):
        return jnp.sign(x) * cast(jnp.abs(x) == distance, dtype_name(x))
    moved = x != 0
    size = jnp.where(moved, jnp.abs(x), jnp.ones((), x.dtype))
    ratio = size ** (p - 1) / safe ** (p - 1)
    return jnp.where(apart & moved, jnp.sign(x) * ratio, zero)


@lowers("aten::_cdist_forward", static=("p",))
def _cdist_forward(x1: Any, x2: Any, p: float, compute_mode: int | None, *, out: Any) -> Any:
    """Distances (..., P, R) of the rows of x1 (..., P, M) and x2 (..., R, M).

    ``compute_mode``: None or 0 use a matrix product for p = 2 beyond 25 rows, 1 always, 2 never.
    """
    dtype = op_math(out.dtype)
    a, b = cast(x1, dtype), cast(x2, dtype)
    if 0 in out.shape or a.shape[-1] == 0:
        return jnp.zeros(out.shape, a.dtype)
    many = a.shape[-2] > 25 or b.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and many)):
        squares_a = jnp.sum(a * a, axis=-1)[..., :, None]
        squares_b = jnp.sum(b * b, axis=-1)[..., None, :]
        products = jnp.matmul(a, jnp.swapaxes(b, -1, -2))
        return jnp.sqrt(jnp.maximum(squares_a + squares_b - 2 * products, 0))
    return _norm(a[..., :, None, :] - b[..., None, :, :], p)


@lowers("aten::_cdist_backward", static=("p",))
def _cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any, *, out: Any) -> Any:
    """Gradient of x1."""
    dtype = op_math(out.dtype)
    if 0 in out.shape or x2.size == 0 or grad.size == 0:
        return jnp.zeros(out.shape, dtype)
    a, b = cast(x1, dtype), cast(x2, dtype)
    difference = a[..., :, None, :] - b[..., None, :, :]
    slope = _slope(difference, cast(cdist, dtype)[..., None], p)
    return jnp.sum(cast(grad, dtype)[..., None] * slope, axis=-2).reshape(out.shape)


@lowers("aten::_pdist_forward", static=("p",))
def _pdist_forward(self: Any, p: float = 2.0, *, out: Any) -> Any:
    """Distances of all pairs of rows i < j, in order."""
    x = cast(self, op_math(out.dtype))
    if 0 in out.shape or x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    i, j = np.triu_indices(x.shape[0], 1)
    return _norm(jnp.take(x, i, axis=0) - jnp.take(x, j, axis=0), p)


@lowers("aten::_pdist_backward", static=("p",))
def _pdist_backward(grad: Any, self: Any, p: float, pdist: Any, *, out: Any) -> Any:
    """Gradient of the rows."""
    dtype = op_math(out.dtype)
    x = cast(self, dtype)
    if 0 in out.shape or grad.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    i, j = np.triu_indices(x.shape[0], 1)
    difference = jnp.take(x, i, axis=0) - jnp.take(x, j, axis=0)
    part = cast(grad, dtype)[:, None] * _slope(difference, cast(pdist, dtype)[:, None], p)
    return jnp.zeros(out.shape, x.dtype).at[i].add(part).at[j].add(-part)
