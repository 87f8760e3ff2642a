"""Higher-order operators become control flow inside the executable."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from support import assert_same, no_fallback, to_device


def check(function: Callable[..., Any], *inputs: Any, gradients: bool = False) -> None:
    """Compiled on the device, as one graph and one executable, equals eager on CPU."""
    moved = to_device(inputs)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    with warnings.catch_warnings(), no_fallback():
        warnings.filterwarnings("error", message=".*operator by operator")
        actual = compiled(*moved)
        assert_same(actual, torch.compile(function, backend="eager")(*inputs), strides=False)
        if gradients:
            first = [i for i in range(len(inputs)) if inputs[i].requires_grad]
            actual.sum().backward()
            function(*inputs).sum().backward()
            for i in first:
                assert_same(moved[i].grad, inputs[i].grad)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign: float) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))

    check(function, torch.full((3,), sign, requires_grad=True), gradients=True)


def test_nested_cond_and_closure() -> None:
    k = torch.randn(3)

    def function(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 1, lambda x: x * k, lambda x: x - k, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x.exp(), (x,))

    for x in (torch.full((3,), 2.0), torch.full((3,), 0.5), torch.full((3,), -1.0)):
        check(function, x, k)


def test_while_loop() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, x: (i < 5) & (x.sum() < 100), lambda i, x: (i + 1, x * 2 + 1), (
                torch.zeros((), dtype=torch.int64, device=x.device), x)
        )  # fmt: skip

    check(function, torch.ones(3))
    check(function, torch.full((3,), 30.0))


def test_map() -> None:
    def function(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch_map(lambda x, w: (x @ w).relu(), xs, w)

    check(function, torch.randn(4, 2, 3), torch.randn(3, 5))


def test_scan() -> None:
    def function(h: torch.Tensor, xs: torch.Tensor) -> Any:
        def step(h: torch.Tensor, x: torch.Tensor) -> Any:
            h = torch.tanh(h + x)
            return h.clone(), h * 2

        return scan(step, h, xs, dim=0)

    check(function, torch.randn(3), torch.randn(6, 3))


def test_associative_scan_generic() -> None:
    def function(xs: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + b, xs, dim=0, combine_mode="generic")

    check(function, torch.rand(7, 3))


@pytest.mark.parametrize("length", [1, 7])
def test_associative_scan_operator(length: int) -> None:
    """PyTorch's own entry keeps combine_mode="pointwise" for CUDA and XPU; its operator runs."""

    def function(xs: torch.Tensor) -> Any:
        return torch.ops.higher_order.associative_scan(lambda a, b: [a + b], [xs], ())

    xs = torch.rand(length, 3)
    with warnings.catch_warnings(), no_fallback():
        warnings.filterwarnings("error", message=".*operator by operator")
        (actual,) = torch.compile(function, backend="neuron", fullgraph=True)(xs.to("neuron"))
    assert_same(actual, xs.cumsum(0))


def test_nested_compile_region_is_one_executable_with_its_caller() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return block(block(x, w), w)

    check(function, torch.randn(3, 3, requires_grad=True), torch.randn(3, 3), gradients=True)


def test_index_check_inside_a_branch_raises() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[i] * 0, (x, i))

    compiled = torch.compile(function, backend="neuron")
    inputs = torch.ones(3).to("neuron"), torch.tensor([5]).to("neuron")
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        compiled(*inputs).cpu()


def test_random_numbers_inside_a_branch_run_operator_by_operator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x.sin(), (x,))

    x = torch.ones(3).to("neuron")
    torch.neuron.manual_seed(5)
    expected = x + torch.rand_like(x)
    torch.neuron.manual_seed(5)
    with pytest.warns(UserWarning, match="operator by operator, because .*random numbers"):
        actual = torch.compile(function, backend="neuron")(x)
    assert torch.equal(actual.cpu(), expected.cpu())
