"""The convolutions that PyTorch calls slow: the same arithmetic under names of their own.

Inputs may come without a batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.rules.conv import _backward, _forward
from torch_neuronx.lowering.table import lowers

Ints = Sequence[int]


def _convolve(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    out: Any,
) -> Any:
    dtype = op_math(out.dtype)
    n = weight.ndim - 2
    alone = x.ndim == n + 1
    if 0 in (x.size, weight.size) or 0 in out.shape:
        result = jnp.zeros(out.shape, dtype)
    else:
        x = x[None] if alone else x
        result = _forward(
            x, weight, stride, padding, dilation, transposed, output_padding, 1
        ).reshape(out.shape)
    if bias is not None:
        result = result + cast(bias, dtype).reshape(-1, *(1,) * n)
    return result


def _transposed_rule(n: int) -> None:
    @lowers(f"aten::slow_conv_transpose{n}d")
    def rule(
        self: Any,
        weight: Any,
        kernel_size: Ints,
        bias: Any,
        stride: Ints,
        padding: Ints,
        output_padding: Ints,
        dilation: Ints,
        *,
        out: Any,
    ) -> Any:
        """Transposed convolution of one group."""
        return _convolve(self, weight, bias, stride, padding, dilation, True, output_padding, out)


def _dilated_rule(n: int) -> None:
    @lowers(f"aten::slow_conv_dilated{n}d")
    def rule(
        self: Any,
        weight: Any,
        kernel_size: Ints,
        bias: Any,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        *,
        out: Any,
    ) -> Any:
        """Dilated convolution of one group."""
        return _convolve(self, weight, bias, stride, padding, dilation, False, (0,), out)


for _n in (2, 3):
    _transposed_rule(_n)
    _dilated_rule(_n)


def _kernel(weight: Any, x: Any, kernel_size: Ints) -> Any:
    """The weight as (out, in, height, width); PyTorch also takes it as a matrix."""
    return weight.reshape(weight.shape[0], x.shape[-3], *kernel_size)


@lowers("aten::_slow_conv2d_forward")
def _slow_conv2d_forward(
    self: Any,
    weight: Any,
    kernel_size: Ints,
    bias: Any,
    stride: Ints,
    padding: Ints,
    *,
    out: Any,
) -> Any:
    """Convolution of one group without dilation."""
    weight = _kernel(weight, self, kernel_size)
    return _convolve(self, weight, bias, stride, padding, (1,), False, (0,), out)


@lowers("aten::_slow_conv2d_backward.output_mask")
def _slow_conv2d_backward(
    grad_output: Any,
    self: Any,
    weight: Any,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask is off."""
    kernel = _kernel(weight, self, kernel_size)
    alone = self.ndim == 3
    g, x = (a[None] if alone else a for a in (grad_output, self))
    grads = _backward(
        g, x, kernel, tuple(stride), tuple(padding), (1,), False, (0,), 1, tuple(output_mask)
    )
    shapes = (self.shape, weight.shape, None)
    return tuple(
        a if a is None or s is None else a.reshape(s) for a, s in zip(grads, shapes, strict=True)
    )
