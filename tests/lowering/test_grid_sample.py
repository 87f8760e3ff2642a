"""Sampling at real-valued grid positions: modes, padding, gradients, positions outside."""

import math

import pytest
import torch
from tests.lowering.harness import check

MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}


def _operands(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n)
    x = torch.randn(2, 3, *(5, 4, 3)[:n], dtype=dtype)
    return x, (torch.rand(2, *(3, 4, 2)[:n], n, dtype=dtype) * 3 - 1.5)


@pytest.mark.parametrize(
    ("n", "mode", "padding", "align_corners"),
    [
        (2, "bilinear", "zeros", False),
        (2, "bilinear", "zeros", True),
        (2, "bilinear", "border", False),
        (2, "bilinear", "reflection", False),
        (2, "bilinear", "reflection", True),
        (2, "nearest", "zeros", False),
        (2, "nearest", "reflection", True),
        (2, "bicubic", "zeros", True),
        (2, "bicubic", "border", False),
        (2, "bicubic", "reflection", False),
        (3, "bilinear", "zeros", False),
        (3, "bilinear", "reflection", True),
        (3, "nearest", "border", False),
    ],
)
def test_values_and_gradients(n: int, mode: str, padding: str, align_corners: bool) -> None:
    x, grid = _operands(n, torch.float32)
    rest = (MODES[mode], PADDINGS[padding], align_corners)
    check(f"aten::grid_sampler_{n}d", x, grid, *rest)
    grad = torch.randn(2, 3, *grid.shape[1:-1])
    backward = f"aten::grid_sampler_{n}d_backward"
    check(backward, grad, x, grid, *rest, [True, True], rtol=1e-4, atol=1e-4)


def test_float16_and_no_input_gradient() -> None:
    x, grid = _operands(2, torch.float32)
    check("aten::grid_sampler_2d", x.half(), grid.half(), 0, 0, False)
    grad = torch.randn(2, 3, *grid.shape[1:-1])
    check("aten::grid_sampler_2d_backward", grad, x, grid, 0, 0, False, [False, True])


def test_far_outside() -> None:
    x, grid = _operands(2, torch.float32)
    grid[0, 0, 0] = 1e12
    grid[0, 1, 1, 0] = -3e9
    check("aten::grid_sampler_2d", x, grid, 0, 0, False)
    check("aten::grid_sampler_2d", x, grid, 1, 0, False)


@pytest.mark.parametrize("padding", PADDINGS)
def test_one_element_planes(padding: str) -> None:
    _, grid = _operands(2, torch.float32)
    x = torch.randn(2, 3, 1, 1)
    for align_corners in (False, True):
        check("aten::grid_sampler_2d", x, grid, 0, PADDINGS[padding], align_corners)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", PADDINGS.values())
@pytest.mark.parametrize("mode", MODES.values())
@pytest.mark.parametrize("n", [2, 3])
def test_nan_and_infinite_coordinates(n: int, mode: int, padding: int, align_corners: bool) -> None:
    if n == 3 and mode == MODES["bicubic"]:
        pytest.skip("two dimensions only")
    lost = [math.nan] if (n, padding) == (3, PADDINGS["reflection"]) else [math.nan, math.inf]
    grid = torch.full((2 * len(lost), n), 0.3)
    for i, value in enumerate(lost):
        grid[2 * i, 0] = grid[2 * i + 1, 1] = value
    x = torch.arange(24.0).reshape(1, 1, *(2, 3, 4) if n == 3 else (6, 4)) + 1
    grid = grid.reshape(1, *(1,) * (n - 1), -1, n)
    check(f"aten::grid_sampler_{n}d", x, grid, mode, padding, align_corners)
