"""Fractional max pooling: where windows lie, nan, one window, gradients."""

import pytest
import torch
from tests.lowering.harness import check


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("batch", [(2, 3), (1, 3), (3,)], ids=str)
def test_windows_and_gradient(n: int, batch: tuple[int, ...]) -> None:
    if len(batch) == 1 and n == 3:
        batch = (2,)
    torch.manual_seed(n)
    x = torch.randn(*batch, *(7, 9, 8)[:n])
    x[..., 2, 3] = float("nan")
    samples = torch.rand(batch[0] if len(batch) == 2 else 1, batch[-1], n)
    kernel, size = [2, 3, 2][:n], [4, 5, 3][:n]
    name = f"aten::fractional_max_pool{n}d"
    check(name, x, kernel, size, samples)
    values, indices = getattr(torch.ops.aten, f"fractional_max_pool{n}d")(x, kernel, size, samples)
    check(f"{name}_backward", torch.randn_like(values), x, kernel, size, indices)


def test_one_window_and_reduced_floats() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    name = "aten::fractional_max_pool2d"
    check(name, x, [2, 2], [1, 3], torch.rand(2, 3, 2))
    half = torch.tensor([[[0.25, 0.5]] * 3] * 2, dtype=torch.bfloat16)
    check(name, x.bfloat16(), [2, 2], [3, 3], half)


def test_windows_are_placed_in_the_operand_s_dtype() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 8, 23, 19).bfloat16()
    samples = torch.rand(1, 8, 2).bfloat16()
    check("aten::fractional_max_pool2d", x, [2, 2], [9, 7], samples)


@pytest.mark.parametrize("n", [2, 3])
def test_more_samples_than_images(n: int) -> None:
    """CPU takes them and reads those of the first image."""
    x = torch.randn(4, *(5,) * n)
    samples = torch.rand(2, 4, n)
    name = f"fractional_max_pool{n}d"
    check(f"aten::{name}", x, [2] * n, [3] * n, samples)
