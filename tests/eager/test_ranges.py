"""Values of operands that PyTorch refuses are refused at every call, in CPU's words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "uniform": lambda x: x.uniform_(3, 1),
    "normal": lambda x: x.normal_(0, -1),
    "bernoulli": lambda x: x.bernoulli_(2.0),
    "exponential": lambda x: x.exponential_(0.0),
    "geometric": lambda x: x.geometric_(1.5),
    "log_normal": lambda x: x.log_normal_(1, 0),
    "cauchy": lambda x: x.cauchy_(0, -2),
    "random_from_to": lambda x: x.random_(5, 2),
    "random_to": lambda x: x.random_(-1),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_as_on_cpu_also_after_a_good_call_with_the_same_key(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        CALLS[name](torch.zeros(3))
    x = torch.zeros(3, device="neuron")
    x.uniform_(1, 3)  # the plan is there: only the values differ
    before = x.cpu()
    with pytest.raises(RuntimeError) as got:
        CALLS[name](x)
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
    assert torch.equal(x.cpu(), before)


def _error(call: Callable[[str], object], device: str) -> tuple[type[BaseException], str]:
    with pytest.raises(RuntimeError) as info:
        call(device)
    return info.type, str(info.value).splitlines()[0]


BEYOND_THE_DTYPE: dict[str, Callable[[str], object]] = {
    "randint": lambda d: torch.randint(0, 300, (6,), device=d, dtype=torch.uint8),
    "randint_negative": lambda d: torch.randint(-5, 30, (6,), device=d, dtype=torch.uint8),
    "randint_like": lambda d: torch.randint_like(torch.ones(3, dtype=torch.int8, device=d), 129),
    "randint_half": lambda d: torch.randint(0, 2**20, (6,), device=d, dtype=torch.float16),
    "random_from_to": lambda d: torch.empty(6, dtype=torch.int8, device=d).random_(0, 300),
    "random_of_nothing": lambda d: torch.empty(0, dtype=torch.int8, device=d).random_(0, 300),
    "random_from": lambda d: torch.empty(6, dtype=torch.int16, device=d).random_(2**20, None),
    "random_to": lambda d: torch.empty(6, dtype=torch.bool, device=d).random_(3),
    "randperm_uint8": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "randperm_int16": lambda d: torch.randperm(2**15 + 1, dtype=torch.int16, device=d),
    "randperm_half": lambda d: torch.randperm(2050, dtype=torch.float16, device=d),
    "randperm_out": lambda d: torch.randperm(
        300, out=torch.empty(300, dtype=torch.uint8, device=d)
    ),
    "rand": lambda d: torch.rand(4, dtype=torch.int64, device=d),
    "randn": lambda d: torch.randn(4, dtype=torch.int32, device=d),
}


@pytest.mark.parametrize("name", BEYOND_THE_DTYPE)
def test_draws_that_the_dtype_cannot_hold_are_refused_as_on_cpu(name: str) -> None:
    call = BEYOND_THE_DTYPE[name]
    assert _error(call, "neuron") == _error(call, "cpu")


def test_a_good_call_with_the_same_key_lets_no_bad_bound_pass() -> None:
    x = torch.empty(1000, dtype=torch.uint8, device="neuron").random_(0, 256)
    assert x.cpu().max() > 200
    with pytest.raises(RuntimeError, match="to - 1 is out of bounds for unsigned char"):
        x.random_(0, 257)


def test_a_permutation_may_reach_the_largest_number_of_its_dtype() -> None:
    p = torch.randperm(256, dtype=torch.uint8, device="neuron").cpu()
    assert p.sort().values.tolist() == list(range(256))


def test_planning_a_draw_does_not_move_the_generator_of_cpu() -> None:
    before = torch.get_rng_state()
    torch.rand(37, device="neuron").normal_().exponential_()
    torch.randperm(41, device="neuron")
    assert torch.equal(torch.get_rng_state(), before)
