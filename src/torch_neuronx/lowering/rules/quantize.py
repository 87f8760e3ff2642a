"""Fake quantisation with its observers, and products of int8 and fp8 matrices with scales.

Formulas as PyTorch's CPU kernels: q = clamp(round(x / scale) + zero_point), halves to even, NaN to
the lower end; 1 / scale is multiplied in float32.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.table import lowers


def _nearest(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _clamp(x: Any, low: int, high: int) -> Any:
    """Between the ends; NaN is the lower one."""
    x = jnp.where(x > low, x, jnp.full_like(x, low))
    return jnp.minimum(x, jnp.full_like(x, high))


def _along(x: Any, axis: int, rank: int) -> Any:
    """A vector shaped to broadcast along ``axis``."""
    shape = [1] * rank
    shape[axis] = -1
    return x.reshape(shape)


def _fake(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    """Quantised and dequantised ``x`` (float32), and where it lay in range."""
    scale, zero = cast(scale, "float32"), cast(zero, "float32")
    q = _nearest(x * (1 / scale)) + zero
    return (_clamp(q, low, high) - zero) * scale, (q >= low) & (q <= high)


@lowers("aten::fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_per_tensor(
    self: Any, scale: Any, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """Fake quantisation by numbers."""
    return _fake(cast(self, "float32"), scale, zero_point, quant_min, quant_max)


@lowers("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_per_tensor_tensors(
    self: Any, scale: Any, zero_point: Any, fake_quant_enabled: Any, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """Fake quantisation by tensors of one element, if ``fake_quant_enabled`` says so."""
    x = cast(self, "float32")
    y, mask = _fake(x, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    on = fake_quant_enabled.reshape(-1)[0] != 0
    return jnp.where(on, y, x), jnp.where(on, mask, True)


@lowers("aten::fake_quantize_per_channel_affine_cachemask")
def fake_quantize_per_channel(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """Fake quantisation with a scale and a zero point for each slice along ``axis``."""
    x = cast(self, "float32")
    scale, zero = (_along(a, axis % x.ndim, x.ndim) for a in (scale, zero_point))
    return _fake(x, scale, zero, quant_min, quant_max)


# --- learnable scale and zero point ------------------------------------------------------------


def _parameters(
    x: Any, scale: Any, zero: Any, axis: int | None, low: int, high: int
) -> tuple[Any, Any]:
    zero = _clamp(_nearest(cast(zero, "float32")), low, high)
    if axis is None:
        return scale.reshape(-1)[0], zero.reshape(-1)[0]
    return _along(scale, axis % x.ndim, x.ndim), _along(zero, axis % x.ndim, x.ndim)


def _learnable(x: Any, scale: Any, zero: Any, axis: int | None, low: int, high: int) -> Any:
    x = cast(x, "float32")
    scale, zero = _parameters(x, scale, zero, axis, low, high)
    return _fake(x, scale, zero, low, high)[0]


@lowers("aten::_fake_quantize_learnable_per_tensor_affine")
def learnable_per_tensor(
    self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, grad_factor: Any = 1.0
) -> Any:
    """Fake quantisation with a learnt scale and zero point (rounded and clamped)."""
    return _learnable(self, scale, zero_point, None, quant_min, quant_max)


@lowers("aten::_fake_quantize_learnable_per_channel_affine")
def learnable_per_channel(
    self: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Any = 1.0,
) -> Any:
    """Fake quantisation with a learnt scale and zero point for each slice along ``axis``."""
    return _learnable(self, scale, zero_point, axis, quant_min, quant_max)


def _learnable_backward(
    grad: Any, x: Any, scale: Any, zero: Any, axis: int | None, low: int, high: int, factor: Any
) -> tuple[Any, Any, Any]:
    grad, x, factor = (cast(a, "float32") for a in (grad, x, factor))
    shape = scale.shape
    if axis is None:  # where PyTorch's kernel rounds the zero point in its own way
        zero = cast(zero, "float32") + 0.5
        zero = jnp.where(zero < 0, lax.ceil(zero), lax.floor(zero))
    scale, zero = _parameters(x, cast(scale, "float32"), zero, axis, low, high)
    inverse = 1 / scale
    q = _nearest(x * inverse) + zero
    inside = (q >= low) & (q <= high)
    ends = jnp.where(q < low, low - zero, high - zero)
    residue = ((_clamp(q, low, high) - zero) * scale - x) * inverse
    nothing = jnp.zeros_like(x)
    by_scale = grad * jnp.where(inside, residue, ends) * factor
    by_zero = jnp.where(inside, nothing, -grad * scale) * factor
    axes = tuple(i for i in range(x.ndim) if axis is None or i != axis % x.ndim)
    return (
        jnp.where(inside, grad, nothing),
        jnp.sum(by_scale, axis=axes).reshape(shape),
        jnp.sum(by_zero, axis=axes).reshape(shape),
    )


@lowers("aten::_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_per_tensor_backward(
    grad: Any,
    self: Any,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    grad_factor: Any = 1.0,
) -> Any:
    """Gradients of input, scale and zero point."""
    return _learnable_backward(
        grad, self, scale, zero_point, None, quant_min, quant_max, grad_factor
    )


@lowers("aten::_fake_quantize_learnable_per_channel_affine_backward")
def learnable_per_channel_backward(
    grad: Any,
    self: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Any = 1.0,
) -> Any:
    """Gradients of input, scales and zero points."""
    return _learnable_backward(
        grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor
    )


# --- moving-average observer -------------------------------------------------------------------

_SMALL_SCALE = 6.1e-5


def _choose(low: Any, high: Any, qmin: int, qmax: int, symmetric: bool) -> tuple[Any, Any]:
    """Scale and zero point that hold [low, high] and zero."""
    low, high = jnp.minimum(low, 0), jnp.maximum(high, 0)
    two_sided = (low < 0) & (high > 0)
    if symmetric:
        below = -((qmax - qmin) // 2 + 1)
        above = below + qmax - qmin
        largest = jnp.maximum(jnp.abs(low / below), jnp.abs(high / above))
        low = jnp.where(two_sided, largest * below, low)
        high = jnp.where(two_sided, largest * above, high)
    scale = (high - low) / (qmax - qmin)
    scale = jnp.where((scale == 0) | jnp.isinf(1 / scale), jnp.full_like(scale, 0.1), scale)
    small = scale < _SMALL_SCALE
    grown = _SMALL_SCALE / scale
    width = jnp.full_like(scale, _SMALL_SCALE * (qmax - qmin))
    new_high = jnp.where(low == 0, width, jnp.where(high == 0, high, high * grown))
    new_low = jnp.where(low == 0, low, jnp.where(high == 0, -width, low * grown))
    low, high = jnp.where(small, new_low, low), jnp.where(small, new_high, high)
    scale = jnp.where(small, jnp.full_like(scale, _SMALL_SCALE), scale)
    from_low, from_high = qmin - low / scale, qmax - high / scale
    error_low = abs(qmin) + jnp.abs(low / scale)
    error_high = abs(qmax) + jnp.abs(high / scale)
    zero = jnp.where(error_low < error_high, from_low, from_high)
    if symmetric:
        zero = jnp.where(two_sided, jnp.full_like(zero, (qmin + qmax) / 2), zero)
    return scale, _clamp(_nearest(zero), qmin, qmax)


def _observe(
    x: Any,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Any,
    running_max: Any,
    scale: Any,
    zero_point: Any,
    averaging: Any,
    qmin: int,
    qmax: int,
    axis: int,
    per_row: bool,
    symmetric: bool,
) -> tuple[Any, ...]:
    axis = axis % max(x.ndim, 1)
    xf = cast(x, "float32")
    axes = tuple(i for i in range(x.ndim) if not per_row or i != axis)
    least, most = jnp.min(xf, axis=axes), jnp.max(xf, axis=axes)
    # The first call finds empty statistics, of channels: they start from infinity.
    shape = least.reshape(-1).shape if running_min.size == 0 else running_min.shape
    if running_min.size == 0:
        running_min, running_max = jnp.full(shape, np.inf), jnp.full(shape, -np.inf)
    old = cast(running_min, "float32"), cast(running_max, "float32")
    new = least.reshape(shape), most.reshape(shape)
    observing = observer_on.reshape(-1)[0] != 0
    rate = cast(averaging, "float32")
    ends = tuple(
        jnp.where(observing, jnp.where(jnp.isinf(o), n, o + rate * (n - o)), o)
        for o, n in zip(old, new, strict=True)
    )
    on = fake_quant_on.reshape(-1)[0] != 0
    chosen, zero = _choose(ends[0], ends[1], qmin, qmax, symmetric)
    chosen, zero = chosen.reshape(-1), zero.reshape(-1)
    if not per_row:
        chosen, zero = chosen[:1], zero[:1]
    old_scale = cast(scale, "float32")
    new_scale = jnp.where(on, jnp.broadcast_to(chosen, scale.shape), old_scale)
    new_zero = jnp.where(on, jnp.broadcast_to(zero, scale.shape), cast(zero_point, "float32"))
    if per_row:
        y, mask = _fake(
            xf, _along(new_scale, axis, x.ndim), _along(new_zero, axis, x.ndim), qmin, qmax
        )
    else:
        y, mask = _fake(xf, new_scale.reshape(-1)[0], new_zero.reshape(-1)[0], qmin, qmax)
    return (
        jnp.where(on, y, xf),
        jnp.where(on, mask, True),
        *ends,
        new_scale,
        new_zero,
    )


@lowers(
    "aten::_fused_moving_avg_obs_fq_helper",
    mutates=("running_min", "running_max", "scale", "zero_point"),
)
def fused_moving_avg_obs_fq_helper(
    self: Any,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Any,
    running_max: Any,
    scale: Any,
    zero_point: Any,
    averaging_const: Any,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Any, ...]:
    """Moves the running range towards the data's, chooses scale and zero point from it, and fake
    quantises: result, mask, and the four updated statistics."""
    return _observe(
        self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
        averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant,
    )  # fmt: skip


@lowers("aten::_fused_moving_avg_obs_fq_helper_functional")
def fused_moving_avg_obs_fq_helper_functional(
    self: Any,
    observer_on: Any,
    fake_quant_on: Any,
    running_min: Any,
    running_max: Any,
    scale: Any,
    zero_point: Any,
    averaging_const: Any,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[Any, ...]:
    """The same; the statistics are results."""
    return _observe(
        self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
        averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant,
    )  # fmt: skip


# --- products ----------------------------------------------------------------------------------


def _product(a: Any, b: Any) -> Any:
    return lax.dot(a, b, precision=lax.Precision.HIGHEST, preferred_element_type=np.float32)


@lowers("aten::_weight_int8pack_mm")
def weight_int8pack_mm(self: Any, mat2: Any, scales: Any) -> Any:
    """self @ mat2.T * scales: ``mat2`` int8 of shape (n, k), one scale for each of its rows."""
    work = op_math(dtype_name(self))
    product = _product(cast(self, work), cast(mat2, work).T)
    return product * cast(scales, "float32")


def _blocks(scale: Any, shape: tuple[int, ...]) -> Any:
    """A scale for each element of ``shape`` from one for all, for rows, columns or blocks."""
    scale = cast(scale, "float32")
    if scale.size == 1:
        return scale.reshape(())
    if scale.ndim != len(shape):
        raise ValueError(
            f"expected scales of {len(shape)} dimensions for a matrix of shape {shape}, got shape "
            f"{tuple(scale.shape)}; swizzled scales have no rule"
        )
    for axis, (have, need) in enumerate(zip(scale.shape, shape, strict=True)):
        if have == 1 or have == need:
            continue
        block = math.ceil(need / have)
        scale = lax.slice_in_dim(jnp.repeat(scale, block, axis=axis), 0, need, axis=axis)
    return scale


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
    product = _product(
        cast(a, "float32") * _blocks(scale_a, a.shape),
        cast(b, "float32") * _blocks(scale_b, b.shape),
    )
    return product if bias is None else product + cast(bias, "float32")


@lowers("aten::_scaled_mm")
def scaled_mm(
    self: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: str | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """(self * scale_a) @ (mat2 * scale_b) + bias in float32, rounded once to ``out_dtype``.

    ``scale_result`` is not used, as by PyTorch's CPU kernel.
    """
    return _scaled(self, mat2, scale_a, scale_b, bias)


@lowers("aten::_scaled_mm_v2")
def scaled_mm_v2(
    self: Any,
    mat2: Any,
    scale_a: tuple[Any, ...],
    recipe_a: tuple[int, ...],
    swizzle_a: tuple[int, ...],
    scale_b: tuple[Any, ...],
    recipe_b: tuple[int, ...],
    swizzle_b: tuple[int, ...],
    bias: Any,
    out_dtype: str | None,
    contraction_dim: tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Any:
    """_scaled_mm with the kinds of scaling named: tensor-wise and row-wise."""
    if any(tuple(r) not in ((0,), (1,)) for r in (recipe_a, recipe_b)):
        raise ValueError(
            "expected tensor-wise or row-wise scaling (recipes [0] or [1]), got "
            f"{list(recipe_a)} and {list(recipe_b)}"
        )
    return _scaled(self, mat2, scale_a[0], scale_b[0], bias)
