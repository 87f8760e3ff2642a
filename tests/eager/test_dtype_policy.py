"""What dtypes mean on the device (decision D6): integers exact, PyTorch's promotion, sums of low
precision accumulated in a higher one. float64's two modes: tests/test_readme.py."""

from __future__ import annotations

import itertools

import pytest
import torch

from support import assert_same, to_device

# complex32, which float16 with complex numbers gives, is not there: bfloat16 stands for both.
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


def test_int64_is_exact() -> None:
    """Beyond what any float holds, and wrapping as C does."""
    x = torch.tensor([2**62 + 1, -(2**62) - 3, 2**53 + 1, 2**63 - 1, -(2**63)])
    y = torch.tensor([3, 7, 5, 1, -1])
    for call in (
        torch.add, torch.sub, torch.mul, torch.bitwise_xor, torch.maximum, torch.eq, torch.lt,
        lambda x, y: torch.div(x[:4], y[:4], rounding_mode="floor"),
        lambda x, y: torch.remainder(x[:4], y[:4]),
        lambda x, y: x.sum(), lambda x, y: y.prod(), lambda x, y: x.cumsum(0),
        lambda x, y: x.sort()[0], lambda x, y: x.max(), lambda x, y: x.abs()[:4],
        lambda x, y: torch.stack([x, y]) @ torch.stack([x, y]).t(),
        lambda x, y: x >> 3, lambda x, y: x * 3 + 2**40,
        lambda x, y: torch.zeros(3, dtype=torch.int64, device=x.device).index_add(
            0, torch.tensor([0, 0, 1, 1, 2], device=x.device), x
        ),
    ):  # fmt: skip
        assert_same(call(*to_device([x, y])), call(x, y), strides=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_promotion_of_tensors_and_numbers(dtype: torch.dtype) -> None:
    """Dimensioned tensors before 0-d ones before Python numbers, and in-place refuses a loss."""
    x = torch.tensor([1, 0, 1]).to(dtype)
    for other in (
        *(torch.tensor([1, 1, 0]).to(d) for d in DTYPES),
        *(torch.tensor(1).to(d) for d in DTYPES),
        True, 2, 2.5,
    ):  # fmt: skip
        moved = to_device(other)
        expected = torch.add(x, other)
        actual = torch.add(x.to("neuron"), moved)
        assert actual.dtype == expected.dtype == torch.result_type(x.to("neuron"), moved)
        assert torch.equal(actual.cpu(), expected)
    target = torch.zeros(3, dtype=dtype, device="neuron")
    for d in DTYPES:
        value = torch.ones(3, dtype=d, device="neuron")
        if torch.can_cast(torch.result_type(target, value), dtype):
            target.add_(value)
        else:
            with pytest.raises(RuntimeError, match="can't be cast"):
                target.add_(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_accumulates_in_float32(dtype: torch.dtype) -> None:
    """4,096 ones: a sum kept in bfloat16 would stop at 256, one in float16 at 2,048."""
    x = torch.ones(4097, dtype=dtype, device="neuron")[:4096]
    assert x.sum().item() == 4096
    assert x.mean().item() == 1
    assert (x[None] @ x[:, None]).item() == 4096
    assert torch.mv(x[None], x).item() == 4096
    assert x.view(1, 1, -1).to(dtype).norm().item() == 64
    assert torch.nn.functional.conv1d(x.view(1, 1, -1), x.view(1, 1, -1)).item() == 4096
    assert x.var().item() == 0
    groups = torch.zeros(4096, dtype=torch.int64, device="neuron")
    assert torch.nn.functional.embedding(groups, x[:2, None]).sum().item() == 4096


def test_small_integers_sum_in_int64() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int32):
        x = torch.ones(1000, dtype=dtype, device="neuron")
        for total in (x.sum(), x.cumsum(0)[-1]):
            assert (total.dtype, total.item()) == (torch.int64, 1000)
    # Without promotion they wrap.
    x = torch.full((2,), 200, dtype=torch.uint8, device="neuron")
    assert (x + x).tolist() == [144, 144]
    assert x.sum(dtype=torch.uint8).item() == 144


def test_conversions_round_and_truncate_as_on_cpu() -> None:
    x = torch.tensor([-2.7, -0.5, 0.5, 1.5, 2.5, 3.9, 1e-8, 70000.0])
    for source, target in itertools.product([torch.float32, torch.float64], DTYPES):
        values = x.to(source)
        if target in (torch.uint8, torch.int8, torch.int16):
            values = values[2:7]  # out of range, and negative to unsigned, is undefined
        assert torch.equal(values.to("neuron").to(target).cpu(), values.to(target))


def test_narrow_integers_keep_the_low_bits_of_floats() -> None:
    x = torch.tensor([-1.0, 256.5, -300.0, 3.7, -3.7, 300.0])
    for target in (torch.uint8, torch.int8, torch.int16):
        assert torch.equal(x.to("neuron").to(target).cpu(), x.to(target))


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_what_selects_a_float64_gives_it_whole(reduce: str) -> None:
    """Backward looks for the chosen element: rounded to float32 it would find none."""
    torch.manual_seed(0)
    index = torch.tensor([0, 1, 0, 1])

    def gradients(device: str) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).to(device).requires_grad_()
        y = x.detach().clone().mul_(3).requires_grad_()
        place = index.to(device)
        result = y.scatter_reduce(0, place, x, reduce).sum() + x.norm(p=torch.inf)
        result = result + y.index_reduce(0, place, x, reduce).sum()
        return [g.cpu() for g in torch.autograd.grad(result, [x, y])]

    for got, expected in zip(gradients("neuron"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_bernoulli_writes_to_any_dtype() -> None:
    x = torch.tensor([0.0, 1.0, 1.0])
    for dtype in (torch.int64, torch.bool, torch.float64):
        out = torch.empty(0, dtype=dtype, device="neuron")
        assert torch.bernoulli(x.to("neuron"), out=out) is out
        assert out.tolist() == [0, 1, 1]
