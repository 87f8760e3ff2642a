"""Mutated inputs and results that share storage, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, no_fallback


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else []


def places(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """The first tensor with the same storage as each, and the offset from that one's."""
    first: dict[int, int] = {}
    found = []
    for i, t in enumerate(tensors):
        owner = first.setdefault(t.untyped_storage().data_ptr(), i)
        found.append((owner, t.storage_offset() - tensors[owner].storage_offset()))
    return found


def check(
    function: Callable[..., Any], make: Callable[[str], list[torch.Tensor]], **options: Any
) -> None:
    """Compiled on the device equals eager on CPU: results, inputs, and who aliases whom."""
    on_cpu, on_device = make("cpu"), make("neuron")
    compiled = torch.compile(function, backend="neuron", **options)
    expected = function(*on_cpu)
    with no_fallback():
        actual = compiled(*on_device)
    assert_same(actual, expected)
    assert_same(on_device, on_cpu, where="inputs")
    assert places(flat([on_device, actual])) == places(flat([on_cpu, expected]))


def one(device: str) -> list[torch.Tensor]:
    return [torch.arange(12.0).view(3, 4).to(device)]


def overlapping(device: str) -> list[torch.Tensor]:
    base = torch.arange(12.0).to(device)
    return [base[:8], base[4:]]


def add_in_place(a: torch.Tensor) -> Any:
    return a.add_(1).mul(2)


def write_to_views(a: torch.Tensor) -> Any:
    row = a[1]
    row.mul_(3)
    a[:, 2].zero_()
    a.t()[0].copy_(torch.ones(a.shape[0], device=a.device))
    return a.sum(), row


def set_items(a: torch.Tensor) -> Any:
    a[0] = 5
    a[:, 1] = a[:, 0] + 1
    a[a > 8] = -1
    return a * 1


def return_inputs(a: torch.Tensor) -> Any:
    return a, a.t(), a[1:, 1:], a + 1


def mutate_and_return_views(a: torch.Tensor) -> Any:
    a.add_(1)
    return a[1:], a, a.t(), a.unflatten(1, (1, -1))[:, 0, 1:]


def return_views_of_results(a: torch.Tensor) -> Any:
    y = a * 2
    return y, y.t(), y[1], y[:, 1:3], y.unsqueeze(1), *y.split(2)


def return_views_alone(a: torch.Tensor) -> Any:
    y, z = a * 2, a * 3
    return y[:, 1:3], z.t()[1:], (a + 1).sum(1, keepdim=True).expand(-1, 5)


def return_twice(a: torch.Tensor) -> Any:
    y = a + 1
    return y, y, a, a, None, 3, 2.5, True, "text"


def overwrite_result(a: torch.Tensor) -> Any:
    y = a.clone()
    y[1].add_(10)
    z = y.t()
    z[0] = 100
    return y, z


def restride(a: torch.Tensor) -> Any:
    y = (a * 2).t()
    start = a.storage_offset()
    again = torch.as_strided(a, (2, 3), (1, 4), start + 1)
    return torch.as_strided(y, (2, 2), (4, 1), 1) + 0, again * 2, again


def unsqueeze_in_place(a: torch.Tensor) -> Any:
    a.unsqueeze_(0)
    return a + 1


@pytest.mark.parametrize(
    "function",
    [
        add_in_place,
        write_to_views,
        set_items,
        return_inputs,
        mutate_and_return_views,
        return_views_of_results,
        return_views_alone,
        return_twice,
        overwrite_result,
        restride,
        unsqueeze_in_place,
    ],
)
def test_one_input(function: Callable[..., Any]) -> None:
    check(function, one)
    check(function, lambda device: [one(device)[0].t()])
    check(function, lambda device: [torch.arange(40.0).to(device)[5:29].view(6, 4)[1:4]])


def test_both_of_two_overlapping_inputs_mutated() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        b.mul_(2)
        return a + b

    check(function, overlapping)  # a view as result would meet a fault of AOTAutograd


def test_one_tensor_given_twice() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        return a * b

    check(function, lambda device: one(device) * 2)


def test_mutated_view_changes_its_base() -> None:
    base = torch.zeros(4, 4)
    moved = base.to("neuron")
    function = torch.compile(lambda v: v.add_(1), backend="neuron")
    function(moved[1:3, 1:])
    base[1:3, 1:].add_(1)
    assert_same(moved, base)


def test_parameter_mutated_without_grad() -> None:
    def function(w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.mul_(2)
        return (w * w).sum()

    on_cpu = torch.arange(3.0, requires_grad=True)
    on_device = torch.arange(3.0).to("neuron").requires_grad_()
    function(on_cpu).backward()
    torch.compile(function, backend="neuron")(on_device).backward()
    assert_same(on_device.detach(), on_cpu.detach())
    assert_same(on_device.grad, on_cpu.grad)


def test_results_that_require_grad_alias_as_in_eager() -> None:
    def function(a: torch.Tensor) -> Any:
        y = a * 2
        return y, y.t(), y[0], a[1:]

    def make(device: str) -> list[torch.Tensor]:
        return [one(device)[0].requires_grad_()]

    check(function, make)


def test_same_strides_other_offset() -> None:
    base = torch.randn(40)
    moved = base.to("neuron")
    function = torch.compile(lambda a: a * 2 + 1, backend="neuron")
    for offset in (0, 1, 3, 10):
        x = moved[offset : offset + 12].view(3, 4)
        assert_same(function(x), base[offset : offset + 12].view(3, 4) * 2 + 1)
        y = moved.view(8, 5)[offset % 4 : offset % 4 + 3, 1:4]
        assert_same(function(y), base.view(8, 5)[offset % 4 : offset % 4 + 3, 1:4] * 2 + 1)


def test_view_result_follows_the_input_of_each_call() -> None:
    function = torch.compile(lambda a: a[1:], backend="neuron")
    base = torch.arange(10.0).to("neuron")
    for offset in (0, 2, 5):
        x = base[offset : offset + 4]
        assert function(x).data_ptr() == x[1:].data_ptr()
