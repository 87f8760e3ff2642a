"""CPU tensors beside neuron tensors: 0-d ones are numbers; errors are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_neuronx


def _assigned(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    x[x > 0] = number
    return x


Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

WITH_A_NUMBER: dict[str, Call] = {
    "assignment by mask": _assigned,
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "masked_fill_": lambda x, n: x.masked_fill_(x > 0, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0, 2], device=x.device), n),
    "index_fill_": lambda x, n: x.index_fill_(0, torch.tensor([0, 2], device=x.device), n),
    "copysign": lambda x, n: torch.copysign(x, -n),
    "copysign_": lambda x, n: x.copysign_(-n),
    "copysign of a number": lambda x, n: torch.copysign(n, x),
    "floor_divide": lambda x, n: torch.floor_divide(x, n),
    "floor_divide_": lambda x, n: x.floor_divide_(n),
    "floor_divide of a number": lambda x, n: torch.floor_divide(n, x),
    "add": lambda x, n: n + x,
    "lerp": lambda x, n: torch.lerp(x, x + 1, n.to(x.dtype)),
    "where": lambda x, n: torch.where(x > 0, x, n),
}


@pytest.mark.parametrize("name", WITH_A_NUMBER)
@pytest.mark.parametrize(
    ("tensor", "number"),
    [(torch.float32, torch.float32), (torch.float16, torch.float64), (torch.float32, torch.int64)],
)
def test_a_cpu_tensor_of_no_dimensions_is_a_number(
    name: str, tensor: torch.dtype, number: torch.dtype
) -> None:
    call = WITH_A_NUMBER[name]
    values = torch.tensor([1.5, -2, 3, -4], dtype=tensor)
    n = torch.tensor(2, dtype=number)
    expected = call(values.clone(), n)
    given = call(values.to("neuron"), n)
    assert given.device.type == "neuron"
    assert given.dtype == expected.dtype
    assert torch.equal(given.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_a_python_number_promotes_less_than_a_tensor(dtype: torch.dtype) -> None:
    x = torch.tensor(3, dtype=dtype)
    for call in (lambda t: 7 // t, lambda t: torch.floor_divide(7, t), lambda t: t.floor_divide(2)):
        expected, given = call(x), call(x.to("neuron"))
        assert (given.dtype, given.item()) == (expected.dtype, expected.item())


def test_no_error_speaks_of_the_meta_device() -> None:
    with pytest.raises(RuntimeError, match=r"at least two devices, neuron and cpu"):
        torch.stack([torch.tensor(1.0, device="neuron"), torch.tensor(1.0)])


def test_a_cpu_number_is_not_written() -> None:
    number = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match=r"at least two devices, neuron and cpu"):
        number.add_(torch.tensor(1.0, device="neuron"))
    assert number.item() == 1


DRAWS: dict[str, Callable[[torch.Generator], object]] = {
    "randn": lambda g: torch.randn(3, generator=g),
    "randint": lambda g: torch.randint(3, (2,), generator=g),
    "randperm": lambda g: torch.randperm(4, generator=g),
    "normal_": lambda g: torch.zeros(()).normal_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.ones(3), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(3), 1, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_neuron_generator_does_not_draw_on_cpu(name: str) -> None:
    message = "Expected a 'cpu' device type for generator but found 'neuron'"
    with pytest.raises(RuntimeError, match=message):
        DRAWS[name](torch.Generator(device="neuron"))


def test_foreach_copy_copies_across_devices() -> None:
    sources = [torch.arange(3.0), torch.tensor(7, device="neuron"), torch.ones(2, 2)]
    for device in ("neuron", "cpu"):
        targets = [torch.zeros(3, device=device), torch.zeros(2, device=device)]
        targets.append(torch.zeros(2, 2, device=device, dtype=torch.int32))
        torch._foreach_copy_(targets, sources)
        assert [t.tolist() for t in targets] == [[0, 1, 2], [7, 7], [[1, 1], [1, 1]]]


def test_foreach_copy_of_one_device_is_one_launch() -> None:
    torch_neuronx.clear_op_tracking()
    targets = [torch.zeros(3, device="neuron"), torch.zeros(2, device="neuron")]
    torch._foreach_copy_(targets, [torch.ones(3, device="neuron"), torch.ones(2, device="neuron")])
    assert "aten::_foreach_copy_" in torch_neuronx.get_executed_ops()
    assert "aten::copy_" not in torch_neuronx.get_executed_ops()
    assert [t.tolist() for t in targets] == [[1, 1, 1], [1, 1]]
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_copy_(targets, targets[:1])
