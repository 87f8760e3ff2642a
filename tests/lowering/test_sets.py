"""Rules of sets.py against CPU."""

import math

import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import check, check_both

torch.manual_seed(0)
X = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 2.999, -0.5])


@pytest.mark.parametrize("low,high", [(0, 0), (-1, 2), (1, 1), (0, 2.5)])
@pytest.mark.parametrize("bins", [1, 3, 100])
def test_histc(bins: int, low: float, high: float) -> None:
    check_both("aten::histc", X, bins, low, high)


def test_histc_of_points_and_nothing() -> None:
    check("aten::histc", torch.tensor([2.0, 2.0]), 3)
    check("aten::histc", torch.empty(0), 3)
    check("aten::histc", torch.tensor([math.nan, 1.0, math.inf]), 3, 0, 2)
    check("aten::histc", torch.randn(3, 50, dtype=torch.float64), 10, exact_float64=True)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool], ids=str
)
def test_hash(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4, 5) * 10).to(dtype)
    check("aten::hash_tensor", x)
    check("aten::hash_tensor", x, [1], keepdim=True)
    check("aten::hash_tensor", x[0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_frexp(dtype: torch.dtype) -> None:
    values = [0.0, -0.0, 1.0, -8.5, math.inf, -math.inf, math.nan, 1e-7, 6e4, 0.1]
    check("aten::frexp.Tensor", torch.tensor(values, dtype=dtype), rtol=0, atol=0)


def test_frexp_of_subnormals() -> None:
    check("aten::frexp.Tensor", torch.tensor([1e-42, -1e-39, 1e-45]), rtol=0, atol=0)
    tiny = torch.tensor([1e-310, -5e-324], dtype=torch.float64)
    check("aten::frexp.Tensor", tiny, rtol=0, atol=0)


def test_assertions() -> None:
    check("aten::_assert_async", torch.tensor([2.0]))
    check("aten::_assert_async.msg", torch.tensor(True), "never said")
    check_error("aten::_assert_async", torch.tensor(0))
    check_error("aten::_assert_async.msg", torch.tensor([0.0]), "sizes differ")


def test_linear_combination() -> None:
    check("aten::_compute_linear_combination", torch.randn(4, 2, 3), torch.randn(5, 4))
