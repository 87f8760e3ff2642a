"""Parts of PyTorch's fused transformer layers: masked softmax and the split of a joint
projection.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers

_SOURCE_MASK, _PADDING_MASK = 0, 1


@lowers("aten::_masked_softmax")
def _masked_softmax(
    self: Any, mask: Any, dim: int | None = None, mask_type: int | None = None, *, out: Any
) -> Any:
    """Softmax over the elements where ``mask`` is false; zeros elsewhere, nan if there are none.

    ``mask`` is (L, L) of mask type 0, (batch, L) of type 1, else of the operand's shape.
    """
    x = cast(self, op_math(out.dtype))
    if x.size == 0:
        return x
    if mask_type == _PADDING_MASK and mask.ndim == 2:
        mask = mask[:, None, None, :]
    hidden = jnp.broadcast_to(mask != 0, x.shape)
    axis = -1 if dim is None else dim
    low = jnp.where(hidden, jnp.asarray(-np.inf, x.dtype), x)
    powers = jnp.exp(low - jnp.max(low, axis=axis, keepdims=True))
    return powers / jnp.sum(powers, axis=axis, keepdims=True)


@lowers("aten::_masked_softmax_backward")
def _masked_softmax_backward(
    grad_output: Any, output: Any, mask: Any, dim: int | None = None, *, out: Any
) -> Any:
    """output * (grad - sum(grad * output)), zero where masked."""
    dtype = op_math(out.dtype)
    g, y = cast(grad_output, dtype), cast(output, dtype)
    hidden = jnp.broadcast_to(mask != 0, y.shape)
    zero = jnp.zeros((), y.dtype)
    axis = -1 if dim is None else dim
    total = jnp.sum(jnp.where(hidden, zero, g * y), axis=axis, keepdims=True)
    return jnp.where(hidden, zero, y * (g - total))


@lowers("aten::_transform_bias_rescale_qkv")
def _transform_bias_rescale_qkv(
    qkv: Any, qkv_bias: Any, num_heads: int, *, out: Any
) -> tuple[Any, Any, Any]:
    """Query, key and value (batch, heads, time, head width) of a joint projection.

    The query is divided by the square root of the head's width.
    """
    dtype = op_math(out[0].dtype)
    x = cast(qkv, dtype) + cast(qkv_bias, dtype)
    batch, time, width = x.shape
    head = width // 3 // num_heads
    split = jnp.transpose(x.reshape(batch, time, 3, num_heads, head), (2, 0, 3, 1, 4))
    return split[0] / math.sqrt(head), split[1], split[2]
