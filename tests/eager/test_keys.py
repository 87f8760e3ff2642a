"""What makes a new executable and what does not (decision D4), and that keys never mix up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import Executables, assert_same, to_device
from torch_neuronx import _C

# Shapes that no other test uses: an executable that exists already would not be counted.


def test_a_thousand_positions_of_a_loop() -> None:
    x = torch.randn(1000, 13)
    device = x.to("neuron")
    with Executables() as new:
        rows = [device[i] * 2 for i in range(1000)]
    assert new.count <= 3, new.names
    assert torch.equal(torch.stack(rows).cpu(), x * 2)


def test_positions_of_the_last_dimension_and_of_slices() -> None:
    x = torch.randn(7, 211)
    device = x.to("neuron")
    with Executables() as new:
        columns = [device[:, i] + 1 for i in range(211)]
        windows = [device[:, i : i + 5].sum() for i in range(200)]
    assert new.count <= 3, new.names
    assert_same(torch.stack(columns, 1), x + 1)
    assert_same(torch.stack(windows), torch.stack([x[:, i : i + 5].sum() for i in range(200)]))


def test_decoding_positions_by_assignment() -> None:
    cache = torch.zeros(2, 3, 500, 9)
    device = cache.to("neuron")
    k = torch.randn(2, 3, 9)
    on_device = k.to("neuron")
    with Executables() as new:
        for position in range(500):
            device[:, :, position] = on_device
    assert new.count <= 3, new.names
    cache[:] = k[:, :, None]
    assert_same(device, cache)


def test_decoding_positions_by_index_copy() -> None:
    device = torch.zeros(2, 3, 500, 9, device="neuron")
    k = torch.randn(2, 3, 1, 9)
    on_device = k.to("neuron")
    with Executables() as new:
        for position in range(500):
            device.index_copy_(2, torch.tensor([position], device="neuron"), on_device)
    assert new.count <= 3, new.names
    assert_same(device, k.expand(2, 3, 500, 9).contiguous())


def test_changing_numbers_never_compile_again() -> None:
    x = torch.randn(11, 3).to("neuron")
    y = torch.randn(11, 3).to("neuron")
    programs: list[Callable[[float], Any]] = [
        lambda v: x * v,
        lambda v: x + v,
        lambda v: v - x,
        lambda v: torch.add(x, y, alpha=v + 3),
        lambda v: torch.addcdiv(x, y, y + 3, value=v + 3),
        lambda v: x.clone().mul_(v).clamp_(-v, v),
        lambda v: torch.nn.functional.layer_norm(x, (3,), eps=v / 1000),
        lambda v: torch.lerp(x, y, v),
        lambda v: x.masked_fill(y > v, v),
        lambda v: x.fill_(v),
        lambda v: torch.nn.functional.leaky_relu(x, v),
    ]
    for program in programs:
        program(0.7)
        with Executables() as new:
            for v in (0.1, 0.2, 3.5, 1e-3, 2.5e8):
                program(v)
        assert new.count == 0, new.names


def test_integers_and_floats_take_one_executable_each() -> None:
    x = torch.randn(17, 3).to("neuron")
    with Executables() as new:
        for i in range(2, 100):
            assert_same(x * i, x.cpu() * i)
            assert_same(x * (i + 0.5), x.cpu() * (i + 0.5))
    assert new.count <= 2, new.names


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_a_changing_learning_rate_never_compiles_again(kind: Any, form: dict[str, bool]) -> None:
    weight = torch.nn.Parameter(torch.randn(19, 3, device="neuron"))
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind([weight], lr=0.1, weight_decay=0.01, **extra, **form)

    def step(lr: float) -> None:
        optimizer.param_groups[0]["lr"] = lr
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    for i in range(3):
        step(0.1 / (i + 1))
    with Executables() as new:
        for i in range(20):
            step(0.01 / (i + 1))
    assert new.count == 0, new.names


def test_same_shapes_in_another_place_share_an_executable() -> None:
    with Executables() as new:
        for _ in range(5):
            a = torch.ones(23, 3, device="neuron")
            b = torch.ones(23, 3, device="neuron")
            (a + b).cpu()
    assert new.names.count("aten::add.Tensor") == 1, new.names


def test_aliased_operands_are_another_call() -> None:
    x = torch.randn(29, 3)
    device = x.to("neuron")
    assert_same(device + device, x + x)
    assert_same(device + device.clone(), x + x)
    assert_same(device.clone() + device, x + x)
    device.add_(device)
    assert_same(device, x + x)


VARIANTS: list[Callable[[], tuple[Any, ...]]] = [
    lambda: (torch.arange(12.0).reshape(3, 4), 2),
    lambda: (torch.arange(12.0).reshape(3, 4), 2.0),
    lambda: (torch.arange(12).reshape(3, 4), 2),
    lambda: (torch.arange(12).reshape(3, 4), 2.5),
    lambda: (torch.arange(12).reshape(3, 4), True),
    lambda: (torch.arange(12.0).reshape(4, 3).t(), 2),
    lambda: (torch.arange(24.0).reshape(3, 8)[:, ::2], 2),
    lambda: (torch.arange(12.0).reshape(3, 4).bfloat16(), 2),
    lambda: (torch.arange(12.0).reshape(3, 4).bfloat16(), torch.tensor(2.0)),
    lambda: (torch.arange(12.0).reshape(3, 4).bfloat16(), torch.tensor([2.0])),
    lambda: (torch.arange(12.0).reshape(4, 3), 2),
    lambda: (torch.arange(12.0).reshape(1, 12), 2),
    lambda: (torch.arange(12.0).reshape(3, 4) > 3, True),
    lambda: (torch.arange(12, dtype=torch.uint8).reshape(3, 4), 250),
    lambda: (torch.arange(12, dtype=torch.int32).reshape(3, 4), 2),
    lambda: (torch.arange(12.0).reshape(3, 4).double(), 1 / 3),
    lambda: (torch.arange(12.0).reshape(3, 4), torch.tensor(2, dtype=torch.int64)),
    lambda: (torch.tensor(5.0), 2),
    lambda: (torch.tensor(5), torch.tensor([1.5, 2.5])),
    lambda: (torch.zeros(0, 4), 2),
]
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "eq": torch.eq,
    "pow": lambda x, v: torch.pow(x.abs() if x.dtype != torch.bool else x.int(), v),
    "sum": lambda x, v: x.sum(-1) if x.dim() else x.sum(),
    "where": lambda x, v: torch.where(x > 1, x, v),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("turn", ["forth", "back", "odd first"])
def test_one_operator_over_dtypes_sizes_strides_and_scalars(name: str, turn: str) -> None:
    """No result depends on what the operator was called with before."""
    order = list(range(len(VARIANTS)))
    if turn == "back":
        order.reverse()
    elif turn == "odd first":
        order = order[1::2] + order[::2]
    for i in order:
        args = VARIANTS[i]()
        assert_same(
            OPERATORS[name](*to_device(list(args))), OPERATORS[name](*args), where=f"variant {i}"
        )


def test_static_numbers_enter_the_key() -> None:
    x = torch.randn(5, 6, 7)
    device = x.to("neuron")
    for dim, keepdim in itertools.product((0, 1, 2, -1), (True, False)):
        assert_same(device.sum(dim, keepdim), x.sum(dim, keepdim))
        assert_same(device.softmax(dim), x.softmax(dim))
    for p in (1, 2, 3, 0.5, float("inf")):
        assert_same(torch.linalg.vector_norm(device, p), torch.linalg.vector_norm(x, p))


def test_plans_are_counted_by_operator() -> None:
    x = torch.randn(31, 3).to("neuron")
    before = _C.num_plans("aten::tanh")
    torch.tanh(x)
    torch.tanh(x)
    torch.tanh(x.t())
    assert _C.num_plans("aten::tanh") == before + 2
