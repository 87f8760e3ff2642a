"""Arrays as they lie: element-wise operators over narrow innermost dimensions run flat."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import torch_neuronx
from support import assert_same, no_fallback, to_device
from torch_neuronx.lowering.layout import flat_row, is_narrow
from torch_neuronx.lowering.program import Array

SHAPES = [(5, 4, 3, 3), (7, 31), (2, 3, 1), (0, 3), (4, 32), (6,), ()]


def test_narrow_shapes() -> None:
    assert [is_narrow(s) for s in SHAPES] == [True, True, True, False, False, False, False]


def test_rows_that_broadcast_stay_as_they_are() -> None:
    import jax.numpy as jnp

    out = Array("float32", (2, 3))
    row = (jnp.ones((2, 3)), jnp.ones((1, 3)))
    assert flat_row(row, out) == (row, out, None)
    (a, b), flat_out, shape = flat_row((jnp.ones((2, 3)), 2.0), out)
    assert a.shape == (6,) and b == 2.0
    assert flat_out == Array("float32", (6,)) and shape == (2, 3)
    assert flat_row((1.0, 2.0), out) == ((1.0, 2.0), out, None)


def lists(dtype: torch.dtype) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [[torch.rand(s, generator=generator).to(dtype) for s in SHAPES] for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_foreach_over_narrow_tensors(dtype: torch.dtype) -> None:
    def run(x: list[torch.Tensor], y: list[torch.Tensor], z: list[torch.Tensor]) -> object:
        torch._foreach_lerp_(x, y, 0.25)
        torch._foreach_mul_(x, [0.5 + i for i in range(len(x))])
        torch._foreach_addcmul_(x, y, z, 0.5)
        torch._foreach_addcdiv_(x, y, torch._foreach_add(z, 1), [0.1] * len(x))
        return x, torch._foreach_sqrt(z), torch._foreach_maximum(y, z), torch._foreach_norm(x[:1])

    expected = run(*lists(dtype))
    with no_fallback():
        assert_same(run(*to_device(lists(dtype))), expected)


def test_foreach_products_of_square_matrices() -> None:
    a, b = ([torch.randn(3, 3) for _ in range(2)] for _ in range(2))
    assert_same(torch._foreach_mm(*to_device([a, b])), torch._foreach_mm(a, b))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_optimizers_over_narrow_parameters(name: str, fused: bool) -> None:
    def train(device: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        parameters = [
            torch.nn.Parameter(torch.randn(s, generator=generator).to(device))
            for s in ((4, 3, 3, 3), (4,), (2, 40))
        ]
        kind = getattr(torch.optim, name)
        optimizer = kind(parameters, lr=0.1, fused=fused, foreach=not fused)
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator).to(device)
            optimizer.step()
        return [p.detach() for p in parameters]

    with no_fallback():
        assert_same(train("neuron"), train("cpu"))


def test_flat_operators_fuse_to_the_bit() -> None:
    def step() -> list[torch.Tensor]:
        x = [torch.full((5, 4, 3, 3), 0.3, device="neuron")]
        for _ in range(3):
            torch._foreach_mul_(x, 1.1)
            torch._foreach_add_(x, 0.7)
        return x

    def result(mode: str) -> torch.Tensor:
        with torch_neuronx.eager_mode(mode):
            for _ in range(12):
                (x,) = step()
                torch.neuron.synchronize()
            return x.cpu()

    assert torch.equal(result("per-op"), result("adaptive"))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64]
)
@pytest.mark.parametrize("rows", [0, 1, 2, 8, 128, 129])
def test_few_rows_by_a_matrix_that_lies_transposed(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)

    def draw(*shape: int) -> torch.Tensor:
        numbers = torch.randn(shape, generator=generator)
        return (numbers * 4).to(dtype) if dtype == torch.int64 else numbers.to(dtype)

    x, weight, bias, whole = draw(rows, 40), draw(24, 40), draw(24), draw(24, rows)

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, whole: torch.Tensor
    ) -> object:
        return (
            x @ weight.t(),
            torch.addmm(bias, x, weight.t(), beta=2, alpha=3),
            x @ weight.t().t().t(),
            x @ weight[::2].t(),
            x @ weight.t().contiguous(),
            whole.t() @ weight,
            (x[None] @ weight.t())[0],
            weight @ x.t(),
            weight.t() @ whole,
            weight.t() @ bias,
            weight @ weight[0],
        )

    expected = run(x, weight, bias, whole)
    moved = to_device((x, weight, bias, whole))
    with no_fallback():
        assert_same(run(*moved), expected, scale=2)
        assert_same(torch.compile(run, backend="neuron")(*moved), expected, scale=2)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_with_gradients(rows: int) -> None:
    on_cpu = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.Linear(24, 8))
    on_device = copy.deepcopy(on_cpu).to("neuron")
    x = torch.randn(rows, 40)
    on_cpu(x).square().sum().backward()
    on_device(x.to("neuron")).square().sum().backward()
    for a, b in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
        assert_same(a.grad, b.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 9), (9, 1), (3, 5)])
def test_batches_of_one_row(rows: int, columns: int, dtype: torch.dtype) -> None:
    a, b = torch.randn(6, rows, 40).to(dtype), torch.randn(6, 40, columns).to(dtype)
    c, d = a.mT.contiguous(), b.mT.contiguous()
    moved = to_device((a, b, c, d))

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> object:
        return a @ b, a @ d.mT, c.mT @ b, c.mT @ d.mT, torch.baddbmm(a @ b, a, d.mT, beta=0.5)

    assert_same(run(*moved), run(a, b, c, d), scale=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_one_query(dtype: torch.dtype) -> None:
    shapes = (2, 4, 1, 16), (2, 4, 33, 16), (2, 4, 33, 16)
    inputs = [torch.randn(s).to(dtype).requires_grad_() for s in shapes]
    mask = torch.rand(1, 33) < 0.7

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> object:
        out = functional.scaled_dot_product_attention(q, k, v, mask)
        return out, torch.autograd.grad(out.float().square().sum(), (q, k, v))

    moved = [x.detach().to("neuron").requires_grad_() for x in inputs]
    assert_same(run(*moved, mask.to("neuron")), run(*inputs, mask), scale=4, strides=False)
