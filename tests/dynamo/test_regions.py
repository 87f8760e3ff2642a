"""Graphs around what no executable can hold: executables before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_neuronx
from support import assert_same, to_device
from torch_neuronx.compiler import ledger


@pytest.fixture(autouse=True)
def records() -> None:
    torch.neuron.reset_dynamo_metrics()


@pytest.fixture
def opaque() -> Iterator[Callable[..., torch.Tensor]]:
    """A custom operator, as torch.library registers them, with a gradient."""
    with torch.library._scoped_library("neuron_tests", "FRAGMENT"):

        @torch.library.custom_op("neuron_tests::twice_sine", mutates_args=())
        def twice_sine(x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 2

        @twice_sine.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)

        twice_sine.register_autograd(
            lambda ctx, g: g * 2 * ctx.saved_tensors[0].cos(),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        )
        yield twice_sine


def check(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> list[str]:
    """Equal to CPU's eager results and mutated inputs; the compiled regions' names."""
    moved = to_device(inputs)
    with pytest.warns(UserWarning, match="operator by operator, because"):
        actual = torch.compile(function, backend="neuron", dynamic=dynamic)(*moved)
    assert_same(actual, function(*inputs))
    assert_same(moved, inputs)
    return [g.graph_name for g in ledger.graphs() if g.specialisations]


def test_custom_operator_between_executables(opaque: Callable[..., torch.Tensor]) -> None:
    names = check(lambda x: (opaque(x * 3 + 1).relu() - 1, x.cos()), torch.randn(4))
    assert len(names) == 2  # before and after
    assert torch_neuronx.get_fallback_ops() == []


def test_gradient_through_a_custom_operator(opaque: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(4, requires_grad=True)
    moved = to_device(x)
    with pytest.warns(UserWarning, match="no lowering rule"):
        result = torch.compile(lambda x: opaque(x * 3).square().sum(), backend="neuron")(moved)
        result.backward()
    ((x * 3).sin() * 2).square().sum().backward()
    assert_same(moved.grad, x.grad)


def test_symbolic_sizes(opaque: Callable[..., torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return opaque(x.reshape(-1) * x.shape[0]).view(x.shape[0], -1) + x.shape[1]

    assert len(check(function, torch.randn(3, 5), dynamic=True)) == 2


def test_written_inputs_and_views() -> None:
    def function(x: torch.Tensor) -> Any:
        values = torch.dequantize(x + 1).abs().sum()
        x.mul_(2)
        return x[0], values, (x * 3).t()

    check(function, torch.diag(torch.arange(3.0)))


def test_random_numbers_keep_their_order(opaque: Callable[..., torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = opaque(F.dropout(x, 0.5))
        b = torch.rand_like(x)
        return opaque(a + torch.rand_like(x)) + b

    x = torch.ones(32).to("neuron")
    torch.neuron.manual_seed(1)
    expected = function(x)
    torch.neuron.manual_seed(1)
    with pytest.warns(UserWarning, match="operator by operator"):
        actual = torch.compile(function, backend="neuron")(x)
    torch.testing.assert_close(actual.cpu(), expected.cpu())


def test_two_obstacles_side_by_side_and_in_a_row(opaque: Callable[..., torch.Tensor]) -> None:
    names = check(lambda x: opaque(opaque(x + 1) * 2) + opaque(x - 1), torch.randn(5))
    assert len(names) == 3
