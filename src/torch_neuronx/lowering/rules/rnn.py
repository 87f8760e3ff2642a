"""Fused cells of recurrent networks, as nn.LSTM, nn.GRU and their cells reach them.

The workspace holds what the backward pass needs, side by side along dimension 1: (N, 4 H) for
LSTM, (N, 5 H) for GRU, the sizes of PyTorch's own kernels. PyTorch 2.13 has no meta kernel for the
GRU cell; its results follow from hx (N, H).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.table import lowers


def _wide(dtype: str, *xs: Any) -> list[Any]:
    return [None if x is None else cast(x, dtype) for x in xs]


def _plus(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


@lowers("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Any,
    hidden_gates: Any,
    cx: Any,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Any, Any, Any]:
    """hy, cy (N, H) and the activated gates i, f, g, o (N, 4 H)."""
    dtype = op_math(dtype_name(input_gates))
    gates_in, gates_hidden, c, b_in, b_hidden = _wide(
        dtype, input_gates, hidden_gates, cx, input_bias, hidden_bias
    )
    gates = _plus(_plus(gates_in + gates_hidden, b_in), b_hidden)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = lax.logistic(i), lax.logistic(f), jnp.tanh(g), lax.logistic(o)
    cy = f * c + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=1)


@lowers("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any, has_bias: bool
) -> tuple[Any, Any, Any]:
    """Gradients of the gates (N, 4 H), of cx, and of the biases (4 H) if there are any."""
    dtype = op_math(dtype_name(workspace))
    gh, gc, c, new_c, gates = _wide(dtype, grad_hy, grad_cy, cx, cy, workspace)
    if gh is None and gc is None:
        return None, None, None
    i, f, g, o = jnp.split(gates, 4, axis=1)
    t = jnp.tanh(new_c)
    zero = jnp.zeros_like(new_c)
    gh = zero if gh is None else gh
    total = gh * o * (1 - t * t) + (zero if gc is None else gc)
    grad_gates = jnp.concatenate(
        [
            total * g * i * (1 - i),
            total * c * f * (1 - f),
            total * i * (1 - g * g),
            gh * t * o * (1 - o),
        ],
        axis=1,
    )
    return grad_gates, total * f, jnp.sum(grad_gates, axis=0) if has_bias else None


@lowers("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Any,
    hidden_gates: Any,
    hx: Any,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Any, Any]:
    """hy (N, H) and reset, update, new, hx and hidden part of new (N, 5 H)."""
    dtype = op_math(dtype_name(input_gates))
    gates_in, gates_hidden, h, b_in, b_hidden = _wide(
        dtype, input_gates, hidden_gates, hx, input_bias, hidden_bias
    )
    r_in, z_in, n_in = jnp.split(_plus(gates_in, b_in), 3, axis=1)
    r_hidden, z_hidden, n_hidden = jnp.split(_plus(gates_hidden, b_hidden), 3, axis=1)
    r, z = lax.logistic(r_in + r_hidden), lax.logistic(z_in + z_hidden)
    n = jnp.tanh(n_in + r * n_hidden)
    return n + z * (h - n), jnp.concatenate([r, z, n, h, n_hidden], axis=1)


@lowers("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(grad_hy: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    """Gradients of input gates, hidden gates (N, 3 H), hx, and of both biases (3 H) if any."""
    dtype = op_math(dtype_name(workspace))
    g, saved = _wide(dtype, grad_hy, workspace)
    r, z, n, h, n_hidden = jnp.split(saved, 5, axis=1)
    grad_n = g * (1 - z) * (1 - n * n)
    grad_z = g * (h - n) * z * (1 - z)
    grad_r = grad_n * n_hidden * r * (1 - r)
    grad_in = jnp.concatenate([grad_r, grad_z, grad_n], axis=1)
    grad_hidden = jnp.concatenate([grad_r, grad_z, grad_n * r], axis=1)
    if not has_bias:
        return grad_in, grad_hidden, g * z, None, None
    return grad_in, grad_hidden, g * z, jnp.sum(grad_in, axis=0), jnp.sum(grad_hidden, axis=0)
