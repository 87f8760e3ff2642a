"""One captured graph whose values tell sizes and numbers: executables around what asks the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from support import assert_same, no_fallback, to_device
from torch_neuronx.compiler import ledger

pytestmark = pytest.mark.filterwarnings("ignore:.*operator by operator")


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    config = torch._dynamo.config
    with (
        config.patch(capture_scalar_outputs=True),
        config.patch(capture_dynamic_output_shape_ops=True),
    ):
        torch.neuron.reset_dynamo_metrics()
        yield


def x_and_mask() -> tuple[Tensor, Tensor]:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, :3] = mask[2, 1:] = True
    return torch.randn(3, 4), mask


def check(function: Callable[..., Any], *, gradient: bool = True) -> None:
    """Captured whole, and equal to CPU's eager results and gradients, for two masks."""
    counter = CompileCounterWithBackend("neuron")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for left_out in (0, 2):
        x, mask = x_and_mask()
        mask[0, :left_out] = False
        ours = to_device((x, mask))
        for tensor in (x, ours[0]):
            tensor.requires_grad_(gradient)
        with no_fallback():
            actual = compiled(*ours)
        expected = function(x, mask)
        assert_same(actual, expected)
        if gradient:
            for value in (actual, expected):
                value.square().sum().backward()
            assert_same(ours[0].grad, x.grad)
    assert counter.frame_count == 1


def select(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 3)[mask].exp()


def indices(x: Tensor, mask: Tensor) -> Tensor:
    i, j = torch.where(mask)
    return x[i, j].sin() * (mask.nonzero() + 1).sum()


def chain(x: Tensor, mask: Tensor) -> Tensor:
    chosen = torch.where(mask, x, -x)[mask]
    return chosen[chosen > chosen.mean()].softmax(0) * chosen.shape[0]


def masked_write(x: Tensor, mask: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[mask] = x[mask].exp()
    return y.cumsum(0)


def number(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask.sum().item()).cos() + x.max().item()


def as_size(x: Tensor, mask: Tensor) -> Tensor:
    n = mask.sum().item()
    return torch.arange(n, device=x.device).float() * x.mean() + torch.ones(n, device=x.device)


def parts(x: Tensor, mask: Tensor) -> Tensor:
    n = mask.sum().item()
    torch._check(n <= 12)
    first, rest = torch.split(x.reshape(-1) * 2, [n, 12 - n])
    return first.sum() - rest.square().sum()


def repeated(x: Tensor, mask: Tensor) -> Tensor:
    return x.repeat_interleave(mask.sum(1), dim=0).tanh()


def doubled(x: Tensor, mask: Tensor) -> Tensor:
    """A size that is an expression of what the data told two executables before."""
    y = x[mask]
    z = torch.cat([y, y]).exp()
    n = (z > 1).nonzero().shape[0]
    return (z * n).reshape(2, -1).sum(1)


@pytest.mark.parametrize(
    "function", [select, indices, chain, masked_write, number, as_size, parts, repeated, doubled]
)
def test_results_and_gradients(function: Callable[..., Tensor]) -> None:
    check(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: (mask.nonzero() * 2, mask.any().item(), x[mask].shape[0]),
        lambda x, mask: torch.unique(x.round()) + 1,
        lambda x, mask: torch.bincount(mask.sum(1)) * 2,
        lambda x, mask: x.reshape(-1)[: mask.sum().item()].cumsum(0),
        lambda x, mask: torch.masked_select(x, mask).square().sum(),
    ],
    ids=["nonzero", "unique", "bincount", "slice", "masked_select"],
)
def test_results(function: Callable[..., Any]) -> None:
    check(function, gradient=False)


def test_what_follows_is_one_executable_and_not_operator_by_operator() -> None:
    check(lambda x, mask: (x[mask].exp() + 1).sin().cumsum(0), gradient=False)
    (region,) = [g for g in ledger.graphs() if g.specialisations]
    assert len(region.specialisations) == 2  # one for each number of elements


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_that_a_later_line_demands(dynamic: bool) -> None:
    """It is traced as known, and the data can still tell another."""

    def function(x: Tensor, mask: Tensor) -> Tensor:
        return (x * 3)[mask].reshape(x.shape[0], 2) + 1

    x, mask = x_and_mask()
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic)
    moved, expected = x.to("neuron").requires_grad_(), x.clone().requires_grad_()
    actual = compiled(moved, mask.to("neuron"))
    assert_same(actual, function(expected, mask))
    actual.square().sum().backward()
    function(expected, mask).square().sum().backward()
    assert_same(moved.grad, expected.grad)
    mask[0, 0] = False
    message = r"Eq\(u0, " if dynamic else r"gave the shape \(5,\).*captured for \(6,\).*line \d+"
    with pytest.raises(RuntimeError, match=message):
        compiled(moved, mask.to("neuron"))


def test_a_number_that_a_later_line_demands() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        n = mask.sum().item()
        torch._check(n == 6)
        return x.sum() + n

    x, mask = x_and_mask()
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    assert_same(compiled(*to_device((x, mask))), function(x, mask))
    mask[0, 0] = False
    with pytest.raises(RuntimeError, match="assertion failed"):
        compiled(*to_device((x, mask)))


def test_a_check_that_was_proven_costs_no_region() -> None:
    """The backward graph repeats what the forward graph's sizes had to be."""
    x, mask = x_and_mask()
    moved = x.to("neuron").requires_grad_()
    compiled = torch.compile(
        lambda x, mask: (x * 3)[mask].reshape(2, 3) + 1, backend="neuron", fullgraph=True
    )
    compiled(moved, mask.to("neuron")).sum().backward()
    (backward,) = [g for g in ledger.graphs() if g.kind == "backward"]
    assert backward.obstacle is None and len(backward.specialisations) == 1


class Experts(torch.nn.Module):
    """A router, and two experts that each take the tokens of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(8, 2)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == i)
            result = result.index_add(0, rows, expert(x[rows]).relu())
        return result


def test_training_steps_of_experts_that_take_what_the_data_tell() -> None:
    torch.manual_seed(0)
    ours, theirs = Experts(), Experts()
    ours.load_state_dict(theirs.state_dict())
    ours = ours.to("neuron")
    step = torch.compile(ours, backend="neuron", fullgraph=True)
    for model in (ours, theirs):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = torch.randn(6, 8)
            result = step(x.to("neuron")) if model is ours else model(x)
            result.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(list(ours.parameters()), list(theirs.parameters()))
