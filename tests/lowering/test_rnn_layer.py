"""Rules of rnn_layer.py: PyTorch's networks of one layer are the reference."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_neuronx.lowering import table

STEPS, N, IN, H = 4, 3, 5, 6
KINDS = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn_tanh": torch.nn.RNN,
    "rnn_relu": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k),
}


def array(x: torch.Tensor | None):
    return None if x is None else jnp.asarray(x.detach().numpy())


def close(got, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", KINDS)
def test_forward_and_backward(mode, reverse, bias):
    rules = table.load_rules()
    forward = rules["neuron::rnn_layer"].function
    backward = rules["neuron::rnn_layer_backward"].function
    torch.default_generator.manual_seed(0)
    network = KINDS[mode](IN, H, bias=bias)
    lstm = mode == "lstm"
    x = torch.randn(STEPS, N, IN, requires_grad=True)
    h, c = (torch.randn(1, N, H, requires_grad=True) for _ in range(2))
    turned = x.flip(0) if reverse else x
    output, last = network(turned, (h, c) if lstm else h)
    output = output.flip(0) if reverse else output
    hy, cy = last if lstm else (last, None)

    states = (array(h[0]), array(c[0]) if lstm else None)
    weights = list(map(array, network.parameters()))
    biases = weights[2:] if bias else [None, None]
    got = forward(array(x), *states, *weights[:2], *biases, mode, reverse, True)
    close(got[0], output)
    close(got[1], hy[0])
    if lstm:
        close(got[2], cy[0])
    without = forward(array(x), *states, *weights[:2], *biases, mode, reverse, False)
    close(without[0], output)
    assert without[3].shape == without[4].shape == (0,)

    grads = torch.randn(STEPS, N, H), torch.randn(N, H), torch.randn(N, H)
    loss = (output * grads[0]).sum() + (hy * grads[1]).sum()
    if lstm:
        loss = loss + (cy * grads[2]).sum()
    loss.backward()
    wanted = [True, True, lstm, True, True, bias, bias]
    found = backward(
        *map(array, grads[:2]), array(grads[2]) if lstm else None, array(x), *states,
        *weights[:2], got[0], got[3], got[4], mode, reverse, wanted,
    )  # fmt: skip
    leaves = [x.grad, h.grad[0], c.grad[0] if lstm else None]
    leaves += [p.grad for p in network.parameters()]
    for a, b, w in zip(found, leaves, wanted, strict=False):
        assert (a is not None) == w
        if w:
            close(a, b)
