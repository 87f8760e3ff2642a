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
