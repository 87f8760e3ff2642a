"""Python numbers that change between calls: operands of one executable, with CPU's values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from support import Executables, assert_same
from torch_neuronx.compiler import ledger

REAL = torch.linspace(-2, 2, 20).reshape(5, 4)
WHOLE = torch.arange(20).reshape(5, 4) - 3
HALF = torch.linspace(-2, 2, 20, dtype=torch.bfloat16).reshape(5, 4)
DOUBLE = REAL.double()
INTEGERS = (2, 3, 5, 7)
FLOATS = (0.3, 1.7, -2.25, 1e-3)


def check(
    function: Callable[..., Any],
    x: Tensor,
    values: Sequence[Any],
    executables: int = 1,
    captures: int = 1,
    **options: Any,
) -> None:
    """CPU's results for every value, with so many captures and executables."""
    counter = CompileCounterWithBackend("neuron")
    compiled = torch.compile(function, backend=counter, **{"dynamic": True, **options})
    with Executables() as new:
        for value in values:
            assert_same(compiled(x.to("neuron"), value), function(x, value))
    assert counter.frame_count == captures
    assert new.count == executables, new.names


def test_two_hundred_values_are_one_executable() -> None:
    check(lambda x, k: x * k, REAL, range(1, 201))


def test_automatic_dynamic_takes_one_more() -> None:
    check(lambda x, k: x * k, REAL, range(3, 12), 2, 2, dynamic=None)


@pytest.mark.parametrize("x", [REAL, WHOLE, HALF, DOUBLE], ids=lambda x: str(x.dtype))
@pytest.mark.parametrize("values", [INTEGERS, FLOATS], ids=["int", "float"])
def test_promotion(x: Tensor, values: Sequence[Any]) -> None:
    check(lambda x, k: (x * k, k - x, x > k, x / (k + 2), torch.where(x > 1, x, k)), x, values)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: torch.add(x, x * 2, alpha=k),
        lambda x, k: torch.addmm(x[:, :1], x, x.T, beta=k, alpha=1 - k),
        lambda x, k: torch.addcdiv(x, x, x.abs() + 1, value=-k),
        lambda x, k: (x.clamp(-abs(k), abs(k)), x.clamp_min(k)),
        lambda x, k: (torch.full((2, 3), k, device=x.device), torch.full_like(x, k)),
        lambda x, k: (x.masked_fill(x > 0, k), x.clone().fill_(k)),
        lambda x, k: x * torch.tensor(k, device=x.device),
        lambda x, k: torch.nn.functional.leaky_relu(x, k),
        lambda x, k: (x * (k * 2 + 1) * (k - 1), k + 1),
        lambda x, k: x % k,
    ],
    ids=["alpha", "addmm", "addcdiv", "clamp", "full", "fill", "tensor", "leaky", "sum", "mod"],
)
@pytest.mark.parametrize("values", [INTEGERS, FLOATS], ids=["int", "float"])
def test_arguments_of_operators(function: Callable[..., Any], values: Sequence[Any]) -> None:
    check(function, REAL, values)


def test_integers_beyond_doubles_are_exact() -> None:
    values = [2**53 + 1, 2**53 + 2, -(2**60) - 1, 2**63 - 1, -(2**63)]
    check(lambda x, k: (x * k, (x + 2**53) == k, torch.full_like(x, k)), WHOLE, values)


def test_integers_beyond_int64_raise() -> None:
    compiled = torch.compile(lambda x, k: x * k, backend="neuron", dynamic=True)
    compiled(WHOLE.to("neuron"), 3)
    with pytest.raises((RuntimeError, OverflowError)):
        compiled(WHOLE.to("neuron"), 2**70)


def test_bools() -> None:
    check(lambda x, k: (x * k, x + (not k)), WHOLE, [True, False, True], 2, 2)


def test_floats_that_are_no_numbers() -> None:
    """Dynamo guards on those, so each is captured by itself."""
    values = [0.5, math.nan, math.inf, -math.inf, -0.0, 1e300, 5e-324]
    compiled = torch.compile(lambda x, k: x * k, backend="neuron", dynamic=True)
    for x in (REAL, HALF):
        for value in values:
            assert_same(compiled(x.to("neuron"), value), x * value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: x[k].exp(),
        lambda x, k: x[-k].exp(),
        lambda x, k: x[k : k + 1] + x.narrow(0, k - 1, 1),
        lambda x, k: x[:, k - 1 : k + 1].clone(),
        lambda x, k: torch.arange(k, k + 4, device=x.device) * x,
        lambda x, k: x.masked_fill(torch.arange(4, device=x.device) >= k, 0.0),
        lambda x, k: (x.tril(k), x.triu(-k)),
        lambda x, k: torch.select_scatter(x, x[0], 0, k),
        lambda x, k: torch.slice_scatter(x, x[:2], 0, k, k + 2),
    ],
    ids=["select", "back", "slice", "columns", "arange", "mask", "tril", "scatter", "write"],
)
def test_positions(function: Callable[..., Any]) -> None:
    check(function, REAL, (2, 3, 1))


def test_numbers_that_decide_a_shape_have_an_executable_each() -> None:
    check(lambda x, k: torch.arange(k, device=x.device) * k, REAL, (2, 3, 4), 3)
    check(lambda x, k: x[:k] * k, REAL, (2, 3, 4), 3)


def test_floats_whose_value_pytorch_asks_for() -> None:
    compiled = torch.compile(lambda x, k: x // k, backend="neuron", dynamic=True)
    for value in (0.3, 1.7, -2.5):  # it guards on each
        assert_same(compiled(REAL.to("neuron"), value), REAL // value)


def test_numbers_that_a_rule_must_know_have_an_executable_each() -> None:
    check(lambda x, k: x.roll(k, 0), REAL, (2, 3), 2)
    check(lambda x, k: x.abs() ** k, REAL, (0.5, 2.0, 3.5), 3)


def test_one_number_in_a_shape_and_one_as_a_value() -> None:
    def function(x: Tensor, k: int) -> Any:
        return torch.full((x.shape[0] + 1,), k, device=x.device) * (k + x.shape[0])

    check(function, REAL, (5, 6, 9))
    compiled = torch.compile(function, backend="neuron", dynamic=True)
    with Executables() as new:
        for rows in (2, 3, 4):
            for k in (7, 8, 11):
                assert_same(compiled(REAL[:rows].to("neuron"), k), function(REAL[:rows], k))
    assert new.count == 3


def test_items() -> None:
    """One executable up to the numbers, and one after them."""

    def function(x: Tensor) -> Tensor:
        return (x * 3).cumsum(0) * x.max().item() + x.sum().item() * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        with Executables() as new, pytest.warns(UserWarning, match="operator by operator"):
            for seed in range(4):
                x = torch.arange(5).mul(7).remainder(5 + seed)
                assert_same(compiled(x.to("neuron")), function(x))
    graphs = [n for n in new.names if n.startswith("model_")]
    assert len(graphs) == 2, new.names


def test_items_as_positions() -> None:
    def function(x: Tensor) -> Tensor:
        return x[x.argmax().item()].exp() * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        with Executables() as new, pytest.warns(UserWarning, match="operator by operator"):
            for place in (1, 0, 4, 2):
                x = torch.arange(5.0).roll(place)
                assert_same(compiled(x.to("neuron")), function(x))
    assert len([n for n in new.names if n.startswith("model_")]) <= 2, new.names


def test_items_of_cpu_tensors_are_no_break() -> None:
    def function(x: Tensor, step: Tensor) -> Any:
        k = step.item()
        return x * k, x / (1 - 0.9**k)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        with Executables() as new:
            for k in (1, 2, 7):
                step = torch.tensor(k)
                assert_same(compiled(REAL.to("neuron"), step), function(REAL, step))
    assert new.count == 1


def test_gradients() -> None:
    def function(x: Tensor, k: int, f: float) -> Tensor:
        return (torch.add(x.sin() * k, x, alpha=f) * (k + 1)).clamp(max=f * 3).sum()

    compiled = torch.compile(function, backend="neuron", dynamic=True)
    with Executables() as new:
        for k, f in [(2, 0.5), (3, 1.5), (7, 2.5), (4, 0.25)]:
            x, ours = REAL.clone().requires_grad_(), REAL.to("neuron").requires_grad_()
            result = compiled(ours, k, f)
            assert_same(result, function(x, k, f))
            result.backward()
            function(x, k, f).backward()
            assert_same(ours.grad, x.grad)
    graphs = [n for n in new.names if n.startswith("model_")]
    assert len(graphs) == 2, new.names  # forward and backward


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "single": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 0.02),
    "adamw": lambda p: torch.optim.AdamW(p, 0.02, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


@pytest.mark.parametrize(
    "name, steps",
    [("sgd", 200), *(pytest.param(n, 20, marks=pytest.mark.full) for n in OPTIMIZERS)],
)
def test_learning_rate_schedules(name: str, steps: int) -> None:
    """Every step has another learning rate; what Dynamo captures first knows the first one."""
    results = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        step = optimizer.step
        if device == "neuron":
            step = torch.compile(step, backend="neuron")
        torch.neuron.reset_dynamo_metrics()
        with Executables() as new:
            for i in range(steps):
                x = torch.linspace(-1, 1, 8).reshape(2, 4).to(device) * (1 + i % 3)
                model(x).square().mean().backward()
                step()
                schedule.step()
                optimizer.zero_grad()
        results.append(list(model.parameters()))
    assert_same(results[1], results[0], scale=10)
    assert len([n for n in new.names if n.startswith("model_")]) == 2, new.names
    assert not ledger.eager_frames()


def test_a_decoding_loop_is_one_executable() -> None:
    """A cache that is written, and a mask that is cut, at a position that is a Python number."""

    def step(x: Tensor, cache: Tensor, position: int) -> Tensor:
        cache.narrow(1, position, 1).copy_(x.unsqueeze(1))
        mask = torch.arange(cache.shape[1], device=x.device) <= position
        scores = (cache @ x.unsqueeze(-1)).squeeze(-1).masked_fill(~mask, -math.inf)
        return (scores.softmax(-1).unsqueeze(1) @ cache).squeeze(1) + position

    compiled = torch.compile(step, backend="neuron")
    cache = torch.zeros(2, 8, 4)
    ours = cache.to("neuron")
    with Executables() as new:
        for position in range(8):
            x = torch.randn(2, 4)
            assert_same(compiled(x.to("neuron"), ours, position), step(x, cache, position))
            assert_same(ours, cache)
    graphs = [n for n in new.names if n.startswith("model_")]
    assert len(graphs) <= 3, new.names  # the first position, 1, and all others


def test_a_changed_value_is_no_cause_of_another_executable() -> None:
    torch.neuron.reset_dynamo_metrics()
    compiled = torch.compile(lambda x, k: x * k, backend="neuron", dynamic=True)
    compiled(REAL.to("neuron"), 3)
    compiled(REAL.to("neuron"), 4)
    compiled(REAL[:2].to("neuron"), 5)
    (graph,) = ledger.graphs()
    _, second = graph.specialisations
    assert "float32[5, 4] -> float32[2, 4]" in second.cause and "int" not in second.cause


@pytest.fixture(autouse=True)
def metrics() -> Iterator[None]:
    torch.neuron.reset_dynamo_metrics()
    yield
