"""Rules of rnn.py: CPU has no fused cells, so nn.LSTMCell and nn.GRUCell are the reference."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_neuronx.lowering import table

N, IN, H = 3, 4, 5


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


def rule(name: str):
    return table.load_rules()[f"aten::_thnn_fused_{name}"].function


def array(x: torch.Tensor | None):
    return None if x is None else jnp.asarray(x.detach().numpy())


def close(got, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=2e-5, atol=2e-5)


def gates(cell, x, h):
    """What the cell gives its fused kernel, as leaves of autograd."""
    parts = [x @ cell.weight_ih.T, h @ cell.weight_hh.T]
    biases = [cell.bias_ih, cell.bias_hh] if cell.bias else [None, None]
    return [None if p is None else p.detach().requires_grad_() for p in (*parts, *biases)]


def plus(a, b):
    return a if b is None else a + b


def reference_lstm(leaves, c):
    i, f, g, o = plus(plus(leaves[0] + leaves[1], leaves[2]), leaves[3]).chunk(4, 1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * new_c.tanh(), new_c


def reference_gru(leaves, h):
    (ri, zi, ni), (rh, zh, nh) = (plus(leaves[k], leaves[k + 2]).chunk(3, 1) for k in (0, 1))
    z = (zi + zh).sigmoid()
    return (1 - z) * (ni + (ri + rh).sigmoid() * nh).tanh() + z * h


@pytest.mark.parametrize("bias", [True, False])
def test_lstm(bias):
    cell = torch.nn.LSTMCell(IN, H, bias)
    x, h, c = torch.randn(N, IN), torch.randn(N, H), torch.randn(N, H, requires_grad=True)
    leaves = gates(cell, x, h)
    hy, cy, workspace = rule("lstm_cell")(*map(array, (*leaves[:2], c, *leaves[2:])))
    expected = cell(x, (h, c))
    close(hy, expected[0])
    close(cy, expected[1])
    for given in ((True, True), (True, False), (False, True)):
        grads = [torch.randn(N, H) if g else None for g in given]
        got = rule("lstm_cell_backward_impl")(*map(array, grads), array(c), cy, workspace, bias)
        pairs = [
            (y, g) for y, g in zip(reference_lstm(leaves, c), grads, strict=True) if g is not None
        ]
        inputs = [leaves[0], c, *([leaves[2]] if bias else [])]
        want = torch.autograd.grad([p[0] for p in pairs], inputs, [p[1] for p in pairs])
        for a, b in zip(got, want, strict=False):
            close(a, b)
        assert (got[2] is None) != bias


@pytest.mark.parametrize("bias", [True, False])
def test_gru(bias):
    cell = torch.nn.GRUCell(IN, H, bias)
    x, h = torch.randn(N, IN), torch.randn(N, H, requires_grad=True)
    leaves = gates(cell, x, h)
    hy, workspace = rule("gru_cell")(*map(array, (*leaves[:2], h, *leaves[2:])))
    close(hy, cell(x, h))
    grad = torch.randn(N, H)
    got = rule("gru_cell_backward")(array(grad), workspace, bias)
    inputs = [*leaves[:2], h, *(leaves[2:] if bias else [])]
    want = torch.autograd.grad(reference_gru(leaves, h), inputs, grad)
    for a, b in zip(got, want, strict=False):
        close(a, b)
    assert (got[3] is None) != bias
