"""Recurrent networks, eager and compiled, with and without biases, against CPU."""

from __future__ import annotations

import copy

import pytest
import torch

from support import no_fallback


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU])
def test_outputs_states_and_gradients(
    kind: type[torch.nn.RNNBase], bias: bool, compiled: bool
) -> None:
    torch.manual_seed(0)
    on_cpu = kind(3, 4, num_layers=2, bidirectional=True, bias=bias, batch_first=True)
    module = copy.deepcopy(on_cpu).to("neuron")
    run = torch.compile(module, backend="neuron") if compiled else module
    x = torch.randn(2, 5, 3)
    with no_fallback():
        expected, got = on_cpu(x)[0], run(x.to("neuron"))[0]
        expected.square().sum().backward()
        got.square().sum().backward()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(module.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.nn.RNNCell, torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells(kind: type[torch.nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    on_cpu = kind(3, 4)
    cell = copy.deepcopy(on_cpu).to("neuron")
    x = torch.randn(2, 3)
    expected, got = on_cpu(x), cell(x.to("neuron"))
    for a, b in zip(
        torch.utils._pytree.tree_leaves(got),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)
