"""Convolutions of one to three dimensions, plain and transposed, with their gradients.

Layouts are PyTorch's: input (N, C, ...), weight (out, in / groups, ...), or for transposed
convolutions (in, out / groups, ...). Reduced floats accumulate in float32 and round once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, np_dtype, op_math
from torch_neuronx.lowering.table import lowers


def _expand(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One value for all dimensions, or one for each."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _dimensions(n: int) -> tuple[str, str, str]:
    spatial = "DHW"[3 - n :]
    return ("NC" + spatial, "OI" + spatial, "NC" + spatial)


def _positions(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Spatial sizes of a convolution's result."""
    return tuple(
        (size + low + high - d * (k - 1) - 1) // s + 1
        for size, k, s, (low, high), d in zip(
            x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True
        )
    )


def _weight_dominates(x: Any, w: Any, *geometry: Any) -> bool:
    """Whether the weight is larger than all patches of the input that it meets."""
    positions = _positions(x, w, *geometry)
    return min(positions) > 0 and w.shape[0] >= x.shape[0] * math.prod(positions)


def _by_patches(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Any:
    """The convolution as one product of the weight, as it lies, with patches of the input.

    XLA's CPU code transposes the weight first, which takes far longer than the arithmetic where
    images are small and channels many (512 to 512 channels, 3 by 3 over 2 by 2: 27 ms against 1).
    """
    batch, channels = x.shape[:2]
    positions = _positions(x, w, stride, padding, dilation)
    zero = jnp.zeros((), x.dtype)
    x = lax.pad(x, zero, ((0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in padding)))
    patches = []
    for offset in itertools.product(*map(range, w.shape[2:])):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [a + s * (n - 1) + 1 for a, s, n in zip(start, stride, positions, strict=True)]
        patches.append(lax.slice(x, (0, 0, *start), (batch, channels, *stop), (1, 1, *stride)))
    columns = jnp.moveaxis(jnp.stack(patches, axis=2), 0, -1)  # (C, patch, ..., N)
    out = lax.dot_general(
        w.reshape(w.shape[0], -1),
        columns.reshape(w[0].size, -1),
        (((1,), (0,)), ((), ())),
        preferred_element_type=np_dtype(op_math(dtype_name(x))),
    )
    return jnp.moveaxis(out.reshape(w.shape[0], *positions, batch), -1, 0)


def _plain(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    input_dilation: tuple[int, ...] | None = None,
) -> Any:
    dtype = op_math(dtype_name(x))
    if input_dilation is None and groups == 1 and _weight_dominates(
        x, w, stride, padding, dilation
    ):  # fmt: skip
        return _by_patches(x, w, stride, padding, dilation)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=padding,
        lhs_dilation=input_dilation,
        rhs_dilation=dilation,
        dimension_numbers=_dimensions(len(stride)),
        feature_group_count=groups,
        preferred_element_type=np_dtype(dtype),
    )


def _transposed(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Any:
    """The gradient of a convolution, written as a convolution of the dilated input."""
    spatial = w.shape[2:]
    n = len(spatial)
    split = w.reshape(groups, w.shape[0] // groups, w.shape[1], *spatial)
    kernel = jnp.flip(jnp.swapaxes(split, 1, 2), range(3, 3 + n))
    kernel = kernel.reshape(groups * w.shape[1], w.shape[0] // groups, *spatial)
    pads = tuple(
        (d * (k - 1) - p, d * (k - 1) - p + o)
        for k, d, p, o in zip(spatial, dilation, padding, output_padding, strict=True)
    )
    return _plain(x, kernel, (1,) * n, pads, dilation, groups, input_dilation=stride)


def _forward(
    x: Any,
    w: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    n = w.ndim - 2
    stride, padding, dilation = (_expand(a, n) for a in (stride, padding, dilation))
    if transposed:
        return _transposed(x, w, stride, padding, dilation, _expand(output_padding, n), groups)
    return _plain(x, w, stride, tuple((p, p) for p in padding), dilation, groups)


@lowers("aten::convolution", "aten::convolution_overrideable")
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    *,
    out: Any,
) -> Any:
    """input convolved with weight, plus bias (one value an output channel)."""
    dtype = op_math(out.dtype)
    if 0 in (input.size, weight.size) or 0 in out.shape:
        result = jnp.zeros(out.shape, np_dtype(dtype))
    else:
        result = _forward(
            input, weight, stride, padding, dilation, transposed, output_padding, groups
        )
    if bias is not None and result.size:  # without input channels PyTorch has no output either
        result = result + cast(bias, dtype).reshape(1, -1, *(1,) * (result.ndim - 2))
    return result


def _backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask is off.

    The transposes are JAX's own. Operands are widened first, so that products of reduced floats
    are exact and sums are in float32.
    """
    dtype = op_math(dtype_name(grad_output))
    g, x, w = (cast(a, dtype) for a in (grad_output, input, weight))

    def forward(x: Any, w: Any) -> Any:
        return _forward(x, w, stride, padding, dilation, transposed, output_padding, groups)

    grad_input = grad_weight = grad_bias = None
    empty = 0 in (g.size, x.size, w.size)
    if output_mask[0]:
        if empty:
            grad_input = jnp.zeros_like(x)
        else:
            (grad_input,) = jax.linear_transpose(lambda a: forward(a, w), x)(g)
    if output_mask[1]:
        if empty:
            grad_weight = jnp.zeros_like(w)
        else:
            (grad_weight,) = jax.linear_transpose(lambda a: forward(x, a), w)(g)
    if output_mask[2]:
        grad_bias = jnp.sum(g, axis=(0, *range(2, g.ndim)))
    return grad_input, grad_weight, grad_bias


@lowers("aten::convolution_backward")
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: tuple[int, ...] | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of aten::convolution."""
    return _backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    )  # fmt: skip


@lowers("aten::convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of aten::convolution_overrideable."""
    return _backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    )  # fmt: skip
