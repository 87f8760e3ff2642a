"""Scans and sorting: nan, ties, stability."""

import math

import numpy as np
import pytest
import torch
from tests.lowering.harness import check, full_arguments, make_case, overload_of, run

NAN, INF = math.nan, math.inf
ROWS = torch.tensor([[3.0, NAN, 1.0, 3.0, -INF, INF, 1.0], [0.0, -0.0, 2.0, 2.0, NAN, NAN, -1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_scans(name: str, dim: int, dtype: torch.dtype) -> None:
    if name == "logcumsumexp" and not dtype.is_floating_point:
        pytest.skip("CPU computes it on floats only")
    check(f"aten::{name}", torch.tensor([[1, 3, -2], [0, 3, 1], [2, 2, 2]]).to(dtype), dim)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_scans_of_special_values(name: str) -> None:
    check(f"aten::{name}", ROWS, 1)
    check(f"aten::{name}", torch.tensor(2.0), 0)
    check(f"aten::{name}", torch.empty(0, 3), 0)


@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort_orders_nan_and_ties(descending: bool) -> None:
    check("aten::sort.stable", ROWS, stable=True, dim=1, descending=descending)
    check("aten::sort.stable", ROWS.t(), stable=True, dim=0, descending=descending)
    x = torch.tensor([2, 1, 2, 1, 0, 2])
    for dtype in (torch.int64, torch.int8, torch.bool, torch.bfloat16):
        check("aten::sort.stable", x.to(dtype), stable=True, descending=descending)


def test_default_sort_and_zero_dim() -> None:
    check("aten::sort", ROWS)
    check("aten::sort", torch.tensor(3.0))
    check("aten::sort", torch.empty(2, 0))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3, 7])
def test_topk(k: int, largest: bool) -> None:
    check("aten::topk", torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]]), k, 1, largest)
    check("aten::topk", ROWS[:, :4], min(k, 4), 1, largest)


def test_selection() -> None:
    check("aten::kthvalue", ROWS, 2)
    check("aten::kthvalue", ROWS, 7, 1, True)
    for keepdim in (False, True):
        check("aten::median.dim", ROWS, 1, keepdim)
        check("aten::nanmedian.dim", ROWS, 1, keepdim)
        check("aten::mode", torch.tensor([[1, 2, 2, 1], [3, 3, 0, 1]]), 1, keepdim)
    for x in (ROWS, torch.tensor([5, 2, 8, 1]), torch.tensor([1.0, 2.0]), torch.empty(0)):
        check("aten::median", x)
        check("aten::nanmedian", x)
    check("aten::nanmedian.dim", torch.tensor([[NAN, NAN, NAN], [1.0, NAN, 2.0]]), 1)


def test_equal_elements_keep_their_order() -> None:
    x = torch.zeros(50)
    for descending in (False, True):
        case = make_case(
            "aten::sort",
            full_arguments(overload_of("aten::sort"), [x], {"descending": descending}),
        )
        np.testing.assert_array_equal(run(case)[1], np.arange(50))


def test_logcumsumexp_helper() -> None:
    check("aten::_logcumsumexp", torch.tensor([[0.5, -math.inf, 3.0], [1.0, NAN, 2.0]]), 1)


@pytest.mark.parametrize("k", [0, 1])
def test_topk_of_a_number_is_the_number(k: int):
    check("aten::topk", torch.tensor(3.5), k)
