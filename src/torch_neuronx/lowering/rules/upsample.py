"""Resizing of one to three trailing dimensions, with gradients.

Every mode is a sum of a few weighted rows in each dimension in turn. Rows and weights depend on
the sizes and scales alone, so they are computed here, in the dtype of the sum as PyTorch does
(nearest modes in float32). Gradients are the transposes of the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.dtypes import cast, np_dtype, op_math
from torch_neuronx.lowering.table import lowers

Ints = Sequence[int]
# For each output position: the input rows (out, taps), and their weights, None for a plain copy.
Taps = tuple[np.ndarray, "np.ndarray | None"]
Axis = Callable[[int, int, float | None, np.dtype], Taps]


def _ratio(size: int, out: int, scale: float | None, dtype: Any) -> Any:
    """Input steps an output step; a given scale counts, not the sizes."""
    if scale is not None and scale > 0:
        return dtype.type(1.0 / scale)
    return dtype.type(size) / dtype.type(out)


def _nearest(shift: float) -> Axis:
    single = np.dtype(np.float32)

    def taps(size: int, out: int, scale: float | None, dtype: np.dtype) -> Taps:
        i = np.arange(out, dtype=single) + single.type(shift)
        position = i * _ratio(size, out, scale, single)
        return np.minimum(np.floor(position).astype(np.int64), size - 1)[:, None], None

    return taps


def _source(
    size: int, out: int, scale: float | None, align_corners: bool, dtype: np.dtype
) -> np.ndarray:
    """Input coordinate of every output position."""
    i = np.arange(out, dtype=dtype)
    if align_corners:
        return i * (dtype.type(size - 1) / dtype.type(max(out - 1, 1)))
    half = dtype.type(0.5)
    return (i + half) * _ratio(size, out, scale, dtype) - half


def _linear(align_corners: bool) -> Axis:
    def taps(size: int, out: int, scale: float | None, dtype: np.dtype) -> Taps:
        if size == out:  # a copy, as PyTorch has it, whatever the scale says
            return np.arange(out, dtype=np.int64)[:, None], None
        x = np.maximum(_source(size, out, scale, align_corners, dtype), 0)
        low = np.minimum(x.astype(np.int64), size - 1)
        high = np.minimum(low + 1, size - 1)
        share = np.clip(x - low.astype(dtype), 0, 1)
        return np.stack([low, high], 1), np.stack([1 - share, share], 1)

    return taps


def _cubic(align_corners: bool) -> Axis:
    def near(x: np.ndarray, a: Any) -> np.ndarray:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: np.ndarray, a: Any) -> np.ndarray:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def taps(size: int, out: int, scale: float | None, dtype: np.dtype) -> Taps:
        a = dtype.type(-0.75)
        x = _source(size, out, scale, align_corners, dtype)
        low = np.floor(x)
        t = x - low
        rows = low.astype(np.int64)[:, None] + np.arange(-1, 3)
        weights = np.stack([far(t + 1, a), near(t, a), near(1 - t, a), far(2 - t, a)], 1)
        return np.clip(rows, 0, size - 1), weights

    return taps


def _antialiased(reach: int, kernel: Callable[[np.ndarray], np.ndarray]) -> Callable[[bool], Axis]:
    """Weights of a kernel of width ``2 * reach``, stretched over the input when it shrinks."""

    def mode(align_corners: bool) -> Axis:
        def taps(size: int, out: int, scale: float | None, dtype: np.dtype) -> Taps:
            if align_corners:
                step = (size - 1) / (out - 1) if out > 1 else 0.0
            else:
                step = float(_ratio(size, out, scale, dtype))
            stretch = max(step, 1.0)
            center = step * (np.arange(out) + 0.5)
            first = np.maximum((center - reach * stretch + 0.5).astype(np.int64), 0)
            end = np.minimum((center + reach * stretch + 0.5).astype(np.int64), size)
            rows = first[:, None] + np.arange(max(int((end - first).max(initial=1)), 1))
            weights = kernel(np.abs((rows - center[:, None] + 0.5) / stretch))
            weights = np.where(rows < end[:, None], weights, 0.0)
            total = weights.sum(1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
            return np.minimum(rows, size - 1), weights.astype(dtype)

        return taps

    return mode


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _keys(x: np.ndarray) -> np.ndarray:
    """The cubic kernel of Keys (1981) with a = -1/2."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _resize_axis(x: Any, axis: int, size: int, scale: float | None, axis_taps: Axis) -> Any:
    rows, weights = axis_taps(x.shape[axis], size, scale, np.dtype(x.dtype))
    shape = [1] * x.ndim
    shape[axis] = size
    total: Any = None
    for tap in range(rows.shape[1]):
        part = jnp.take(x, jnp.asarray(rows[:, tap]), axis=axis, mode="clip")
        if weights is not None:
            part = part * jnp.asarray(weights[:, tap].reshape(shape), x.dtype)
        total = part if total is None else total + part
    return total


def _resize(x: Any, size: Ints, scales: Sequence[float | None], axis_taps: Axis) -> Any:
    n = len(size)
    for a in range(n):
        x = _resize_axis(x, x.ndim - n + a, size[a], scales[a], axis_taps)
    return x


def _fixed_point(weights: np.ndarray) -> tuple[np.ndarray, int]:
    """Weights as integers below 2**15 in magnitude, and the bits behind their binary point."""
    bits = 0
    while bits < 22 and int(0.5 + weights.max(initial=0.0) * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = weights * (1 << bits)
    return np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int32), bits


def _resize_bytes(x: Any, out: Any, scales: Sequence[float | None], axis_taps: Axis) -> Any:
    """Images of bytes in PyTorch's fixed point: the last dimension first, each rounded to bytes."""
    n = len(scales)
    x = cast(x, "int32")
    for axis in range(x.ndim - 1, x.ndim - n - 1, -1):
        size, scale = out.shape[axis], scales[axis - (x.ndim - n)]
        rows, weights = axis_taps(x.shape[axis], size, scale, np.dtype(np.float64))
        if weights is None:
            x = jnp.take(x, jnp.asarray(rows[:, 0]), axis=axis, mode="clip")
            continue
        fixed, bits = _fixed_point(weights)
        shape = [1] * x.ndim
        shape[axis] = size
        total: Any = jnp.int32((1 << bits) >> 1)
        for tap in range(rows.shape[1]):
            part = jnp.take(x, jnp.asarray(rows[:, tap]), axis=axis, mode="clip")
            total = total + part * jnp.asarray(fixed[:, tap].reshape(shape))
        x = jnp.clip(total >> bits, 0, 255)
    return x


def _forward(x: Any, out: Any, n: int, scales: Sequence[float | None], taps: Axis) -> Any:
    return _resize(x, out.shape[-n:], scales, taps)


def _backward(grad: Any, out: Any, n: int, scales: Sequence[float | None], taps: Axis) -> Any:
    dtype = op_math(out.dtype)
    g = cast(grad, dtype)
    if 0 in out.shape or g.size == 0:
        return jnp.zeros(out.shape, g.dtype)
    x = jax.ShapeDtypeStruct(out.shape, np_dtype(dtype))
    return jax.linear_transpose(lambda a: _resize(a, g.shape[-n:], scales, taps), x)(g)[0]


_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def _nearest_rules(name: str, n: int, taps: Axis) -> None:
    static = _SCALES[n]

    @lowers(f"aten::{name}{n}d", static=static, exact=True)
    def forward(self: Any, output_size: Ints, *scales: float | None, out: Any) -> Any:
        """The nearest input element for each output element."""
        return _forward(self, out, n, scales, taps)

    @lowers(f"aten::{name}{n}d_backward", static=static)
    def backward(
        grad_output: Any, output_size: Ints, input_size: Ints, *scales: float | None, out: Any
    ) -> Any:
        """Sums of the gradients of all outputs that an input element supplied."""
        return _backward(grad_output, out, n, scales, taps)


def _weighted_rules(name: str, n: int, taps: Callable[[bool], Axis]) -> None:
    static = _SCALES[n]

    @lowers(f"aten::{name}", static=static)
    def forward(
        self: Any, output_size: Ints, align_corners: bool, *scales: float | None, out: Any
    ) -> Any:
        """Interpolation between neighbouring input elements."""
        if out.dtype == "uint8":
            return _resize_bytes(self, out, scales, taps(align_corners))
        x = cast(self, op_math(out.dtype))
        return _forward(x, out, n, scales, taps(align_corners))

    @lowers(f"aten::{name}_backward", static=static)
    def backward(
        grad_output: Any,
        output_size: Ints,
        input_size: Ints,
        align_corners: bool,
        *scales: float | None,
        out: Any,
    ) -> Any:
        """The transpose of the interpolation."""
        return _backward(grad_output, out, n, scales, taps(align_corners))


for _n in (1, 2, 3):
    _nearest_rules("upsample_nearest", _n, _nearest(0.0))
    _nearest_rules("_upsample_nearest_exact", _n, _nearest(0.5))
_weighted_rules("upsample_linear1d", 1, _linear)
_weighted_rules("upsample_bilinear2d", 2, _linear)
_weighted_rules("upsample_trilinear3d", 3, _linear)
_weighted_rules("upsample_bicubic2d", 2, _cubic)
_weighted_rules("_upsample_bilinear2d_aa", 2, _antialiased(1, _triangle))
_weighted_rules("_upsample_bicubic2d_aa", 2, _antialiased(2, _keys))
