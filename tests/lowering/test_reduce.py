"""Reductions: dims, dtypes, empty operands, nan."""

import math

import pytest
import torch
from tests.lowering.harness import check

NAN, INF = math.nan, math.inf
DIMS = [None, [], [0], [-1], [0, 2]]


def operand(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(1)
    return (torch.randn(3, 4, 2) * 3).to(dtype)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64], ids=str
)
def test_sum(dtype: torch.dtype, dim: list[int] | None, keepdim: bool) -> None:
    x = operand(dtype)
    check("aten::sum.dim_IntList", x, dim, keepdim)
    if dtype.is_floating_point:
        check("aten::nansum", x, dim, keepdim)
    if dtype.is_floating_point or dtype.is_complex:
        check("aten::mean.dim", x, dim, keepdim)


def test_integers_accumulate_in_int64() -> None:
    check("aten::sum", torch.full((300,), 127, dtype=torch.int8))
    check("aten::prod", torch.tensor([100, 100, 100], dtype=torch.int8))
    check("aten::sum", torch.ones(5, dtype=torch.bool))
    check("aten::sum.dim_IntList", torch.full((4,), 2**31 - 1, dtype=torch.int32), [0])


def test_reduced_floats_accumulate_in_float32() -> None:
    x = torch.ones(4096, dtype=torch.bfloat16)
    check("aten::sum", x, rtol=0, atol=0)  # bfloat16 partial sums would stop at 256
    check("aten::mean", x, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, None], ids=str)
def test_explicit_dtype(dtype: torch.dtype | None) -> None:
    x = torch.tensor([1.75, -2.5, 3.0])
    check("aten::sum", x, dtype=dtype)
    check("aten::prod.dim_int", x, 0, dtype=dtype)
    check("aten::cumsum", x, 0, dtype=dtype)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    for name in ("sum", "mean", "prod", "any", "all"):
        check(f"aten::{name}", x)
    check("aten::sum.dim_IntList", x, [0])
    check("aten::mean.dim", x, [0], True)
    check("aten::linalg_vector_norm", x)
    check("aten::logsumexp", x, [0])
    check("aten::var.correction", x, correction=1)


def test_zero_dim_operands() -> None:
    x = torch.tensor(3.5)
    check("aten::sum.dim_IntList", x, [0])
    check("aten::sum.dim_IntList", x, [-1], True)
    check("aten::max.dim", x, 0)
    check("aten::argmax", x)
    check("aten::argmin", x, 0)
    check("aten::var.correction", x, correction=1)
    check("aten::any.dim", x, -1)


@pytest.mark.parametrize("correction", [None, 0, 1, 0.5, 12, 30], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_variance(dtype: torch.dtype, correction: float | None) -> None:
    x = operand(dtype)
    for dim in (None, [1], [0, 2]):
        for name in ("var", "std", "var_mean", "std_mean"):
            check(f"aten::{name}.correction", x, dim, correction=correction, keepdim=dim == [1])


def test_variance_of_large_means() -> None:
    x = torch.tensor([1e6, 1e6 + 1, 1e6 + 2])
    check("aten::var.correction", x, correction=1)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8], ids=str
)
def test_extremes(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 3], [0, 0, 7], [2, 2, 2]]).to(dtype)
    for name in ("max", "min", "argmax", "argmin"):
        if dtype is not torch.bool or not name.startswith("arg"):
            check(f"aten::{name}", x)
    for keepdim in (False, True):
        for name in ("amax", "amin"):
            check(f"aten::{name}", x, [0, -1], keepdim)
            check(f"aten::{name}", x, [], keepdim)
        for name in ("max", "min"):
            check(f"aten::{name}.dim", x, 1, keepdim)
        check("aten::aminmax", x, dim=1, keepdim=keepdim)
        if dtype is not torch.bool:
            check("aten::argmax", x, None, keepdim)
            check("aten::argmin", x, 1, keepdim)


def test_nan_wins() -> None:
    x = torch.tensor([[1.0, NAN, 3.0, NAN], [INF, 2.0, -INF, 0.0]])
    for name in ("max", "min", "argmax", "argmin", "amax", "amin"):
        check(f"aten::{name}", x)
    for name in ("max", "min"):
        check(f"aten::{name}.dim", x, 1)


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32], ids=str)
def test_logic(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 0, 0], [1, 0, 2]]).to(dtype)
    check(f"aten::{name}", x)
    check(f"aten::{name}.dim", x, -1, True)
    check(f"aten::{name}.dims", x, [0, 1])
    check(f"aten::{name}.dims", x, None)
    check(f"aten::{name}.dims", x, [])


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1.5, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_norms(dtype: torch.dtype, order: float) -> None:
    x = operand(dtype)
    check("aten::linalg_vector_norm", x, order)
    check("aten::linalg_vector_norm", x, order, [0, 2], True)
    check("aten::norm.ScalarOpt_dim", x, order, [1])
    if dtype is not torch.complex64:
        check("aten::norm.Scalar", x, order)
        check("aten::dist", x, x * 0.5, order)


def test_norm_dtype() -> None:
    x = operand(torch.bfloat16)
    check("aten::linalg_vector_norm", x, 2, dtype=torch.float32)
    check("aten::norm.ScalarOpt_dtype", x, 2, dtype=torch.float32)
    check("aten::norm.ScalarOpt_dim_dtype", x, 2, [0], True, dtype=torch.float32)


def test_logsumexp() -> None:
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [1000.0, 1000.0], [-1000.0, 0.0]])
    check("aten::logsumexp", x, [1])
    check("aten::logsumexp", x[2:], [0, 1], True)


def test_count_nonzero_and_trace() -> None:
    x = torch.tensor([[0.0, NAN, 2.0], [0.0, -0.0, 1.0]])
    check("aten::count_nonzero.dim_IntList", x, [1])
    check("aten::count_nonzero", x)
    check("aten::trace", torch.arange(6, dtype=torch.int32).reshape(2, 3))


def test_aminmax_helpers() -> None:
    x = torch.tensor([[1.0, NAN, 2.0], [0.5, -0.5, INF]])
    check("aten::_aminmax", x[1])
    check("aten::_aminmax.dim", x, 1)
    check("aten::_aminmax.dim", x, 0, True)
