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

from support import Executables, assert_same, no_fallback, to_device
from torch_neuronx.compiler import ledger


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


def gradients(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Results and gradients are those of CPU, each graph one executable."""
    ours = [t.to("neuron").detach().requires_grad_(t.requires_grad) for t in inputs]
    with warnings.catch_warnings(), no_fallback():
        warnings.filterwarnings("error", message=".*operator by operator")
        compare_training(function, ours, inputs)


def compare_training(function: Callable[..., Any], ours: Any, theirs: Any) -> None:
    actual = torch.compile(function, backend="neuron", fullgraph=True)(*ours)
    expected = torch.compile(function, backend="aot_eager", fullgraph=True)(*theirs)
    assert_same(actual, expected, strides=False)
    for result in (actual, expected):
        weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
        (result * weights.to(result.device)).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        if b.requires_grad:
            assert_same(a.grad, b.grad, strides=False, scale=10)


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(4, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()


def test_gradients_of_cond_in_both_branches_and_closures() -> None:
    for shift in (2.0, -2.0):
        x, w = weights()

        def function(x: torch.Tensor, w: torch.Tensor, shift: float = shift) -> torch.Tensor:
            return torch.cond(
                (x + shift).sum() > 0, lambda x: (x @ w).sin(), lambda x: (x * 2) @ w, (x,)
            )

        gradients(function, x, w)


def test_gradients_of_map() -> None:
    gradients(lambda xs, w: torch_map(lambda x, w: (x @ w).relu(), xs, w), *weights())


def test_gradients_of_scan() -> None:
    def step(h: torch.Tensor, x: torch.Tensor) -> Any:
        h = torch.tanh(h * 0.5 + x)
        return h.clone(), h * 2

    def function(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        last, all_steps = scan(step, w[0], xs, dim=0)
        return all_steps * last

    gradients(function, *weights())


def test_gradients_of_associative_scan() -> None:
    def function(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + b, xs, dim=0, combine_mode="generic") @ w

    gradients(function, *weights())


def test_gradients_of_nested_compile_regions_and_checkpoints() -> None:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.utils.checkpoint.checkpoint(block, x, w, use_reentrant=False)
        return torch.utils.checkpoint.checkpoint(
            lambda y: block(y, w).exp(), y, use_reentrant=False
        )

    gradients(function, *weights())


def loop(x: torch.Tensor, w: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """As many turns as ``limit``'s value says."""

    def turn(i: torch.Tensor, x: torch.Tensor) -> Any:
        return i + 1, torch.sin(x @ w) + x * 0.5

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    turns, result = while_loop(lambda i, x: i < limit, turn, (start, x))
    return result * turns


def test_training_a_loop_whose_turns_the_data_tell() -> None:
    """The forward graph is two executables, one that counts and one that makes so many turns; the
    backward graph is one."""
    torch.neuron.reset_dynamo_metrics()
    compiled = torch.compile(loop, backend="neuron", fullgraph=True)
    with (
        no_fallback(),
        pytest.warns(UserWarning, match="2 executables with 0 operators .* turns_of"),
    ):
        for turns in (1, 2, 6):
            x, w = weights()
            ours = [t.detach().to("neuron").requires_grad_() for t in (x, w)]
            limit = torch.tensor(turns)
            result, expected = compiled(*ours, limit.to("neuron")), loop(x, w, limit)
            assert_same(result, expected)
            result.square().sum().backward()
            expected.square().sum().backward()
            assert_same([t.grad for t in ours], [x.grad, w.grad], scale=10)
    (backward,) = [g for g in ledger.graphs() if g.kind == "backward"]
    assert backward.obstacle is None and len(backward.specialisations) == 3
    (forward,) = [g for g in ledger.graphs() if g.obstacle]
    assert "depends on data" in forward.obstacle
    with Executables() as new:  # the same numbers of turns again
        for turns in (2, 6):
            compiled(*ours, torch.tensor(turns).to("neuron")).sum().backward()
    assert not [n for n in new.names if n.startswith("model_")]


def test_a_loop_without_turns_gives_what_it_starts_with() -> None:
    x, w = weights()
    ours = [t.detach().to("neuron").requires_grad_() for t in (x, w)]
    compiled = torch.compile(loop, backend="neuron", fullgraph=True)
    with pytest.warns(UserWarning, match="turns_of"):
        result = compiled(*ours, torch.tensor(-1).to("neuron"))
    assert_same(result, loop(x, w, torch.tensor(-1)))


def test_training_a_loop_with_a_number_that_changes_and_two_results() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def turn(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
            return i + 1, (a @ w).tanh() + b, b * 0.9 + a.sum() * 0.01

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        _, a, b = while_loop(
            lambda i, a, b: (i < 5) & (a.abs().sum() < 30), turn, (start, x, x * 0.1)
        )
        return a * b

    x, w = weights()
    ours = [t.detach().to("neuron").requires_grad_() for t in (x, w)]
    with no_fallback(), pytest.warns(UserWarning, match="turns_of"):
        compare_training(function, ours, [x, w])
