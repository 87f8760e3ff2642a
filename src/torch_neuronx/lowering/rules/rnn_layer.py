"""One layer and direction of a recurrent network over a whole sequence, with gradients.

``neuron::rnn_layer`` (csrc/torch/dispatch/recurrent.cc). The loop over the steps is StableHLO's
``while`` and holds the recurrent product and the cell alone; the input's product and the gradients
of the weights are one product each over all steps, outside of it. T steps, N sequences, I inputs,
H hidden units, G gates: 4 for "lstm", 3 for "gru", 1 for "rnn_tanh" and "rnn_relu".

Gates are computed in float32 for reduced floats. The hidden state is rounded after each step, as
it is the result; the state of the LSTM's cell is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, np_dtype, op_math
from torch_neuronx.lowering.layout import behind_barrier
from torch_neuronx.lowering.rules.matmul import product
from torch_neuronx.lowering.table import lowers


def _moved(x: Any) -> Any:
    """``x`` laid out in the order of its dimensions, once: XLA would fold a transposed weight into
    the product of every step (0.50 ms, moved 0.39; 32 steps of 8 by 128 by 512)."""
    return behind_barrier(x)


def _step_product(a: Any, b: Any) -> Any:
    """(N, K) by (K, M) inside the loop, whose operands lie as they are read."""
    return lax.dot_general(
        a,
        b,
        (((1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST if dtype_name(a) == "float32" else None,
        preferred_element_type=np_dtype(op_math(dtype_name(a))),
    )


def _whole_product(a: Any, b: Any) -> Any:
    """(T, N, K) by (K, M)."""
    return product(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])


def _before(states: Any, first: Any, reverse: bool) -> Any:
    """The state (T, N, H) that each step started from."""
    parts = [states[1:], first[None]] if reverse else [first[None], states[:-1]]
    return jnp.concatenate(parts)


def _cell(mode: str, gates_in: Any, gates_hidden: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """New h, new c, and what the backward pass needs of the gates, (N, 4 H) or None."""
    if mode == "lstm":
        # Behind a barrier, or XLA computes the gates once for h and once for c.
        gates = lax.optimization_barrier(gates_in + gates_hidden)
        i, f, g, o = jnp.split(gates, 4, axis=1)
        i, f, g, o = lax.logistic(i), lax.logistic(f), jnp.tanh(g), lax.logistic(o)
        c = f * c + i * g
        return o * jnp.tanh(c), c, jnp.concatenate([i, f, g, o], axis=1)
    if mode == "gru":
        r_in, z_in, n_in = jnp.split(gates_in, 3, axis=1)
        r_hidden, z_hidden, n_hidden = jnp.split(gates_hidden, 3, axis=1)
        r, z = lax.logistic(r_in + r_hidden), lax.logistic(z_in + z_hidden)
        n = jnp.tanh(n_in + r * n_hidden)
        return n + z * (h - n), None, jnp.concatenate([r, z, n, n_hidden], axis=1)
    x = gates_in + gates_hidden
    return (jnp.tanh(x) if mode == "rnn_tanh" else jnp.maximum(x, 0)), None, None


@lowers("neuron::rnn_layer")
def rnn_layer(
    x: Any,
    hx: Any,
    cx: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any,
    b_hh: Any,
    mode: str,
    reverse: bool,
    train: bool,
) -> tuple[Any, ...]:
    """From x (T, N, I) and states (N, H): output (T, N, H), last h and c (N, H), and, when
    training, gates (T, N, 4 H) and cells (T, N, H). What a mode does not have is empty, (0,)."""
    dtype = dtype_name(x)
    wide = op_math(dtype)
    gates_in = _whole_product(x, w_ih.T)
    if b_ih is not None:
        gates_in = gates_in + cast(b_ih, wide)
    b_hh = None if b_hh is None else cast(b_hh, wide)
    if b_hh is not None and mode != "gru":  # the GRU's is multiplied by a gate
        gates_in, b_hh = gates_in + b_hh, None
    w = _moved(w_hh.T)
    empty = jnp.zeros((0,), np_dtype(dtype))

    def step(state: tuple[Any, Any], gates_in: Any) -> tuple[tuple[Any, Any], Any]:
        h, c = state
        gates_hidden = _step_product(h, w)
        if b_hh is not None:
            gates_hidden = gates_hidden + b_hh
        h, c, gates = _cell(mode, gates_in, gates_hidden, cast(h, wide), c)
        h = cast(h, dtype)
        kept = [None if v is None or not train else cast(v, dtype) for v in (gates, c)]
        return (h, c), (h, *kept)

    first = (hx, None if cx is None else cast(cx, wide))
    (hy, cy), (output, gates, cells) = lax.scan(step, first, gates_in, reverse=reverse)
    return tuple(empty if v is None else v for v in (output, hy, cy, gates, cells))


class _Saved(NamedTuple):
    """What one step of the backward pass reads; the state is that before the step."""

    grad: Any
    h: Any
    c: Any
    output: Any
    gates: Any
    new_c: Any


def _cell_backward(mode: str, s: _Saved, grad_h: Any, grad_c: Any) -> tuple[Any, Any, Any]:
    """Gradients of the gates, and of h and c before the step, h's without the product.

    The GRU's are (N, 4 H): those of the input's three gates, then the last one of the state's.
    """
    if mode == "lstm":
        i, f, g, o = jnp.split(s.gates, 4, axis=1)
        t = jnp.tanh(s.new_c)
        total = grad_h * o * (1 - t * t) + grad_c
        gates = [
            total * g * i * (1 - i),
            total * s.c * f * (1 - f),
            total * i * (1 - g * g),
            grad_h * t * o * (1 - o),
        ]
        return jnp.concatenate(gates, axis=1), None, total * f
    if mode == "gru":
        r, z, n, n_hidden = jnp.split(s.gates, 4, axis=1)
        grad_n = grad_h * (1 - z) * (1 - n * n)
        grad_z = grad_h * (s.h - n) * z * (1 - z)
        grad_r = grad_n * n_hidden * r * (1 - r)
        return jnp.concatenate([grad_r, grad_z, grad_n, grad_n * r], axis=1), grad_h * z, None
    slope = 1 - s.output * s.output if mode == "rnn_tanh" else s.output > 0
    return grad_h * cast(slope, dtype_name(grad_h)), None, None


def _of_state(mode: str, grads: Any) -> Any:
    """Of the gradients of the gates, those of the state's product."""
    if mode != "gru":
        return grads
    size = grads.shape[-1] // 4
    return jnp.concatenate([grads[..., : 2 * size], grads[..., 3 * size :]], axis=-1)


def _of_input(mode: str, grads: Any) -> Any:
    return grads if mode != "gru" else grads[..., : grads.shape[-1] // 4 * 3]


@lowers("neuron::rnn_layer_backward")
def rnn_layer_backward(
    grad_output: Any,
    grad_hy: Any,
    grad_cy: Any,
    x: Any,
    hx: Any,
    cx: Any,
    w_ih: Any,
    w_hh: Any,
    output: Any,
    gates: Any,
    cells: Any,
    mode: str,
    reverse: bool,
    wanted: list[bool],
) -> tuple[Any, ...]:
    """Gradients of input, hx, cx, both weights and both biases (G H), as far as ``wanted``."""
    dtype = dtype_name(x)
    wide = op_math(dtype)
    lstm = mode == "lstm"
    h_before = _before(output, hx, reverse)
    saved = _Saved(
        grad_output,
        h_before if mode == "gru" else None,
        _before(cells, cx, reverse) if lstm else None,
        None if lstm or mode == "gru" else output,
        gates if lstm or mode == "gru" else None,
        cells if lstm else None,
    )

    def step(state: tuple[Any, Any], row: _Saved) -> tuple[tuple[Any, Any], Any]:
        grad_h, grad_c = state
        row = _Saved(*(None if v is None else cast(v, wide) for v in row))
        if row.grad is not None:
            grad_h = grad_h + row.grad
        grads, direct, grad_c = _cell_backward(mode, row, grad_h, grad_c)
        grads = cast(grads, dtype)
        grad_h = _step_product(_of_state(mode, grads), w_hh)
        return (grad_h if direct is None else grad_h + direct, grad_c), grads

    zero = jnp.zeros(hx.shape, np_dtype(wide))
    last = (
        zero if grad_hy is None else cast(grad_hy, wide),
        (zero if grad_cy is None else cast(grad_cy, wide)) if lstm else None,
    )
    (grad_hx, grad_cx), grads = lax.scan(step, last, saved, reverse=not reverse)
    of_input, of_state = _of_input(mode, grads), _of_state(mode, grads)

    def of_weight(grads: Any, operand: Any) -> Any:
        """(T, N, G H) and (T, N, K) to (G H, K)."""
        return product(grads.reshape(-1, grads.shape[-1]).T, operand.reshape(-1, operand.shape[-1]))

    def of_bias(grads: Any) -> Any:
        return jnp.sum(cast(grads, wide), axis=(0, 1))

    results = (
        lambda: _whole_product(of_input, w_ih),
        lambda: grad_hx,
        lambda: grad_cx,
        lambda: of_weight(of_input, x),
        lambda: of_weight(of_state, h_before),
        lambda: of_bias(of_input),
        lambda: of_bias(of_state),
    )
    return tuple(f() if w else None for f, w in zip(results, wanted, strict=True))
