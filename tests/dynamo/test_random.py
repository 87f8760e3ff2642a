"""The same seed draws the same numbers compiled as in eager (decision D9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(8, 9, device=x.device),
    "randint": lambda x: torch.randint(3, 9, (5,), device=x.device),
    "randperm": lambda x: torch.randperm(17, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "uniform_": lambda x: torch.empty_like(x).uniform_(0, 1),
    "normal_": lambda x: torch.empty_like(x).normal_(0, 1),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(1.0, 2.0),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(0.0, 0.5),
    "poisson": lambda x: torch.poisson(x.exp() * 5),
    "multinomial": lambda x: torch.multinomial(x.exp(), 4),
    "multinomial with replacement": lambda x: torch.multinomial(x.exp(), 12, True),
    "gamma": lambda x: torch._standard_gamma(x.exp()),
    "dirichlet": lambda x: torch._sample_dirichlet(x.exp()),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 20), x.sigmoid()),
    "several": lambda x: (torch.rand_like(x), F.dropout(x, 0.5), torch.randn_like(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_draws_are_those_of_eager(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    x = torch.randn(7, 9).to("neuron")
    cpu_state = torch.random.get_rng_state()
    torch.neuron.manual_seed(3)
    expected = [function(x), function(x)]
    state = torch.neuron.get_rng_state()
    torch.neuron.manual_seed(3)
    actual = [compiled(x), compiled(x)]
    assert torch.equal(torch.neuron.get_rng_state(), state)
    assert torch.equal(torch.random.get_rng_state(), cpu_state)
    for a, e in zip(actual, expected, strict=True):
        pairs = zip(a, e, strict=True) if isinstance(a, tuple) else [(a, e)]
        for b, f in pairs:
            assert torch.equal(b.cpu(), f.cpu())


def test_dropout_gradient_uses_the_mask_that_was_drawn() -> None:
    x = torch.ones(64).to("neuron").requires_grad_()
    y = torch.compile(lambda x: F.dropout(x, 0.5), backend="neuron")(x)
    y.sum().backward()
    assert torch.equal(y.detach().cpu(), x.grad.cpu())
    assert 0 < (y == 0).sum().item() < 64


def test_cpu_random_operators_draw_from_the_cpu_generator() -> None:
    function = torch.compile(lambda x: x + torch.rand(3).to(x.device), backend="neuron")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(function(torch.zeros(3).to("neuron")).cpu(), expected)


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda x: torch.randint(0, 300, (4,), dtype=torch.uint8, device=x.device),
         "to - 1 is out of bounds for unsigned char"),
        (lambda x: torch.randint(-(2**40), 0, (4,), dtype=torch.int32, device=x.device),
         "from is out of bounds for int"),
        (lambda x: torch.randint_like(x, 5, 500, dtype=torch.int8),
         "to - 1 is out of bounds for signed char"),
    ],
)  # fmt: skip
def test_bounds_beyond_the_dtype_are_refused_as_in_eager(
    draw: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    x = torch.zeros(4).to("neuron")
    for function in (draw, torch.compile(draw, backend="neuron")):
        with pytest.raises(RuntimeError, match=message):
            function(x)
            torch.neuron.synchronize()


def test_the_full_range_of_int64_is_drawn_as_in_eager() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, (64,), device=x.device)

    x = torch.zeros(1).to("neuron")
    torch.neuron.manual_seed(5)
    expected = draw(x)
    torch.neuron.manual_seed(5)
    assert torch.equal(torch.compile(draw, backend="neuron")(x).cpu(), expected.cpu())
