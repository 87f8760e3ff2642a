"""Reflection and replication padding, and sliding blocks. Gradients are transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, np_dtype, op_math
from torch_neuronx.lowering.table import lowers

Ints = Sequence[int]


def _transposed(forward: Callable[[Any], Any], grad: Any, out: Any) -> Any:
    """The gradient of a linear ``forward``, summed in float32 for the reduced floats."""
    dtype = op_math(out.dtype)
    if grad.size == 0 or 0 in out.shape:
        return jnp.zeros(out.shape, np_dtype(dtype))
    x = jax.ShapeDtypeStruct(out.shape, np_dtype(dtype))
    return jax.linear_transpose(forward, x)(cast(grad, dtype))[0]


def _reflect(n: int, low: int, high: int) -> np.ndarray:
    place = np.abs(np.arange(-low, n + high))
    return np.where(place >= n, 2 * (n - 1) - place, place)


def _replicate(n: int, low: int, high: int) -> np.ndarray:
    return np.clip(np.arange(-low, n + high), 0, n - 1)


def _pad(x: Any, padding: Ints, places: Callable[[int, int, int], np.ndarray]) -> Any:
    """Pairs of ``padding`` are for the last dimension, the one before it, and so on."""
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        index = places(x.shape[axis], padding[2 * i], padding[2 * i + 1])
        x = jnp.take(x, jnp.asarray(index), axis=axis, mode="clip")
    return x


def _register(name: str, places: Callable[[int, int, int], np.ndarray]) -> None:
    @lowers(f"aten::{name}", exact=True)
    def forward(self: Any, padding: Ints) -> Any:
        """Padded with values of the operand itself."""
        return _pad(self, padding, places)

    @lowers(f"aten::{name}_backward")
    def backward(grad_output: Any, self: Any, padding: Ints, *, out: Any) -> Any:
        """Gradients of all the copies of an element, summed."""
        return _transposed(lambda x: _pad(x, padding, places), grad_output, out)


for _n in (1, 2, 3):
    _register(f"reflection_pad{_n}d", _reflect)
    _register(f"replication_pad{_n}d", _replicate)


def _columns(x: Any, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """Blocks of (..., c, h, w) as columns: (..., c * kernel elements, blocks)."""
    x = lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 2) + [(p, p, 0) for p in padding]
    )
    blocks = []
    for axis in (0, 1):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        count = (x.shape[x.ndim - 2 + axis] - reach) // stride[axis] + 1
        starts = np.arange(count) * stride[axis]
        blocks.append(np.arange(kernel[axis])[:, None] * dilation[axis] + starts)
    rows, columns = blocks
    x = jnp.take(x, jnp.asarray(rows), axis=x.ndim - 2, mode="clip")  # (..., c, kh, oh, w)
    x = jnp.take(x, jnp.asarray(columns), axis=x.ndim - 1, mode="clip")  # (..., kh, oh, kw, ow)
    *batch, c, kh, oh, kw, ow = x.shape
    return jnp.swapaxes(x, -3, -2).reshape(*batch, c * kh * kw, oh * ow)


@lowers("aten::im2col", exact=True)
def im2col(self: Any, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """Sliding blocks as columns."""
    return _columns(self, kernel, dilation, padding, stride)


@lowers("aten::col2im")
def col2im(
    self: Any,
    output_size: Ints,
    kernel: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
    *,
    out: Any,
) -> Any:
    """Columns summed back into the image: the transpose of ``im2col``."""
    return _transposed(lambda x: _columns(x, kernel, dilation, padding, stride), self, out)
