"""What foreach operators refuse: results that their targets cannot hold, and shared elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "add a float": lambda x: torch._foreach_add_([x], 1.5),
    "divide": lambda x: torch._foreach_div_([x], 2.0),
    "square root": lambda x: torch._foreach_sqrt_([x]),
    "lerp": lambda x: torch._foreach_lerp_([x], [x.clone()], 0.5),
    "multiply by floats": lambda x: torch._foreach_mul_([x], [x * 0.5]),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_integers_do_not_take_floats(name: str) -> None:
    with pytest.raises(Exception) as on_cpu:
        IN_PLACE[name](torch.tensor([3, 4]))
    x = torch.tensor([3, 4]).to("neuron")
    with pytest.raises(type(on_cpu.value)) as on_device:
        IN_PLACE[name](x)
    assert str(on_device.value) == str(on_cpu.value)
    assert x.tolist() == [3, 4]


def test_integers_take_integers() -> None:
    x = torch.tensor([3, 4]).to("neuron")
    torch._foreach_add_([x], 2)
    assert x.tolist() == [5, 6]


def test_lists_that_share_elements_are_refused_and_neighbours_are_not() -> None:
    x = torch.arange(4.0).to("neuron")
    for shared in ([x, x], [x[:2], x[1:]]):
        with pytest.raises(RuntimeError, match="share elements"):
            torch._foreach_add_(shared, 1.0)
    assert x.tolist() == [0, 1, 2, 3]
    torch._foreach_mul_([x[::2], x[1::2]], 2.0)
    assert x.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch._foreach_sub([x], True),
        lambda x: torch._foreach_sub_([x], True),
        lambda x: torch._foreach_sub([x, x.clone()], [2, True]),
        lambda x: torch._foreach_add([x], [x], alpha=True),
    ],
    ids=["number", "in place", "numbers", "alpha"],
)
def test_bools_are_no_numbers_to_subtract_or_to_scale_with(
    call: Callable[[torch.Tensor], object],
) -> None:
    with pytest.raises(RuntimeError) as on_cpu:
        call(torch.ones(2))
    x = torch.ones(2, device="neuron")
    torch._foreach_sub([x], 1)
    with pytest.raises(RuntimeError) as on_device:
        call(x)
    assert str(on_device.value) == str(on_cpu.value)
    assert x.tolist() == [1, 1]
    assert torch._foreach_add([x], True)[0].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["ceil", "sign", "minimum", "abs_"])
def test_complex_numbers_have_no_order_and_no_floor(name: str) -> None:
    function = getattr(torch, f"_foreach_{name}")

    def call(x: torch.Tensor) -> object:
        return function([x], [x]) if name == "minimum" else function([x])

    with pytest.raises((RuntimeError, NotImplementedError)) as on_cpu:
        call(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(type(on_cpu.value)) as on_device:
        call(torch.ones(2, dtype=torch.complex64, device="neuron"))
    assert str(on_device.value) == str(on_cpu.value)
