"""Rules of pool.py against CPU PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.lowering.errors import check_error
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check

FLOATS = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


# kernel, stride, padding, dilation, ceil_mode
MAX_2D = [
    ([2, 2], [], [0, 0], [1, 1], False),
    ([3, 2], [2, 1], [1, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], True),
    ([2, 3], [3, 2], [1, 1], [2, 3], True),
    ([2], [5], [0], [1], False),
    ([9, 9], [2, 2], [4, 3], [1, 1], False),  # large enough for reduce_window
    ([9, 9], [3, 1], [2, 4], [2, 1], True),
]


@pytest.mark.parametrize("options", MAX_2D)
def test_max_pool2d(options):
    for dtype in FLOATS:
        x = torch.randint(-9, 9, (2, 3, 19, 18)).to(dtype)  # many equal values
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, *options)
        check("aten::max_pool2d_with_indices", x, *options)
        check("aten::max_pool2d_with_indices", x[0], *options)
        grad = torch.randint(-4, 5, y.shape).to(dtype)
        check("aten::max_pool2d_with_indices_backward", grad, x, *options, indices)


def test_max_pool_keeps_nan_and_infinity():
    x = torch.randn(1, 1, 12, 12)
    x[0, 0, 3, 4], x[0, 0, 6, 6], x[0, 0, :2] = math.nan, math.nan, -math.inf
    check("aten::max_pool2d_with_indices", x, [3, 3], [1, 1], [1, 1])
    check("aten::max_pool2d_with_indices", x, [9, 9], [1, 1], [1, 1], [1, 1], False)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pool3d(ceil_mode):
    for kernel in ([2, 3, 2], [5, 4, 5]):
        check_gradients(
            lambda x, k=kernel: F.max_pool3d(x, k, [2, 1, 2], [1, 1, 0], 1, ceil_mode),
            torch.randn(2, 2, 7, 8, 9),
            reach=("aten::max_pool3d_with_indices", "aten::max_pool3d_with_indices_backward"),
        )


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE_2D = [
    ([2, 2], [], [0, 0], False, True, None),
    ([3, 2], [2, 3], [1, 1], False, True, None),
    ([3, 2], [2, 3], [1, 1], True, False, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 3], [1, 2], [1, 1], True, True, 5),
    ([2], [5], [0], False, True, None),
]


@pytest.mark.parametrize("options", AVERAGE_2D)
def test_avg_pool2d(options):
    for dtype in FLOATS:
        x = torch.randn(2, 3, 10, 11).to(dtype)
        check("aten::avg_pool2d", x, *options)
        check("aten::avg_pool2d", x[0], *options)
        grad = torch.randn(torch.ops.aten.avg_pool2d(x, *options).shape).to(dtype)
        check("aten::avg_pool2d_backward", grad, x, *options)


def test_avg_pool2d_of_integers():
    check("aten::avg_pool2d", torch.randint(0, 90, (1, 1, 6, 6)), [2, 2])


@pytest.mark.parametrize("include", [False, True])
def test_avg_pool3d(include):
    check_gradients(
        lambda x: F.avg_pool3d(x, [2, 3, 2], [2, 2, 1], [1, 1, 0], True, include),
        torch.randn(2, 2, 7, 8, 9),
        reach=("aten::avg_pool3d", "aten::avg_pool3d_backward"),
    )


@pytest.mark.parametrize("size", [(1, 1), (4, 3), (3, 5), (12, 9), (15, 10)])
def test_adaptive_avg_pool2d(size):
    x = torch.randn(2, 3, 12, 9)
    check("aten::_adaptive_avg_pool2d", x, list(size))
    check("aten::_adaptive_avg_pool2d", x[0].bfloat16(), list(size))
    check("aten::_adaptive_avg_pool2d_backward", torch.randn(2, 3, *size), x)


def test_adaptive_average_keeps_infinity_apart():
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 0, 0] = math.inf
    check("aten::_adaptive_avg_pool2d", x, [3, 2])
    grad = torch.zeros(1, 1, 3, 2)
    grad[0, 0, 0, 0] = math.inf
    check("aten::_adaptive_avg_pool2d_backward", grad, x)


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 3, 4), (5, 2, 7)])
def test_adaptive_avg_pool3d(size):
    x = torch.randn(2, 3, 4, 6, 7)
    check("aten::_adaptive_avg_pool3d", x, list(size))
    check("aten::_adaptive_avg_pool3d_backward", torch.randn(2, 3, *size), x)


@pytest.mark.parametrize("size", [(1, 1), (4, 3), (3, 5), (15, 10)])
def test_adaptive_max_pool2d(size):
    x = torch.randint(-4, 5, (2, 3, 12, 9)).float()
    check("aten::adaptive_max_pool2d", x, list(size))
    _, indices = torch.ops.aten.adaptive_max_pool2d(x, list(size))
    check("aten::adaptive_max_pool2d_backward", torch.randn(2, 3, *size), x, indices)


def test_adaptive_max_pool3d():
    check_gradients(
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 5)),
        torch.randn(2, 3, 4, 6, 7),
        reach=("aten::adaptive_max_pool3d", "aten::adaptive_max_pool3d_backward"),
    )


def test_max_unpool():
    y, indices = F.max_pool2d(torch.randn(2, 3, 8, 8), 2, return_indices=True)
    check("aten::max_unpool2d", y, indices, [8, 8])
    y, indices = F.max_pool3d(torch.randn(2, 3, 4, 4, 4), 2, return_indices=True)
    check("aten::max_unpool3d", y, indices, [4, 4, 4], [2, 2, 2], [0, 0, 0])


@pytest.mark.parametrize("bad", [100, 8, -1])
def test_max_unpool_refuses_positions_outside_of_the_volume(bad: int):
    x = torch.ones(1, 1, 1, 2)
    left = check_error("aten::max_unpool2d", x, torch.tensor([[[[0, bad]]]]), [2, 4])
    np.testing.assert_array_equal(left[0].reshape(-1), [1, 0, 0, 0, 0, 0, 0, 0])
    index = torch.tensor([[[[[bad * 2, 0]]]]])
    check_error("aten::max_unpool3d", x[None], index, [2, 2, 4], [2, 2, 2], [0, 0, 0])
