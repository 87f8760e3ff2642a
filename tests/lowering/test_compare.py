"""Comparisons and logic."""

import math

import pytest
import torch
from tests.lowering.harness import check, check_both

SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0])
NAMES = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str) -> None:
    check(f"aten::{name}.Tensor", SPECIAL[:, None], SPECIAL)
    check_both(f"aten::{name}.Scalar", SPECIAL, 0)
    check_both(f"aten::{name}.Scalar", SPECIAL, math.nan)


@pytest.mark.parametrize("name", NAMES)
def test_dtypes(name: str) -> None:
    ints = torch.tensor([2**53, 2**53 + 1, -1])
    check(f"aten::{name}.Tensor", ints[:, None], ints)
    check_both(f"aten::{name}.Scalar", ints, 2**53 + 1)
    check_both(f"aten::{name}.Scalar", torch.tensor([1, 2, 3]), 2.5)
    check_both(f"aten::{name}.Scalar", torch.tensor([True, False]), 1)
    # 0.1 is compared after rounding to the tensor's dtype
    check_both(f"aten::{name}.Scalar", torch.tensor([0.1, 0.2]), 0.1)
    check_both(f"aten::{name}.Scalar", torch.tensor([0.1, 0.2]).bfloat16(), 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_float64_is_compared_exactly(name: str) -> None:
    x = torch.tensor([1.0, 1.0 + 2**-50], dtype=torch.float64)
    check(f"aten::{name}.Tensor", x, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name: str) -> None:
    check(f"aten::{name}", SPECIAL[:, None], torch.tensor([0, 3]))
    check(f"aten::{name}", torch.tensor([True, False]), torch.tensor([0.5, 0.0]))
    check(f"aten::{name}", torch.tensor([1j, 0j]), torch.tensor([1j, 1j]))


@pytest.mark.parametrize("invert", [False, True])
def test_membership(invert: bool) -> None:
    x = torch.tensor([[3, 1, 4], [1, 5, 9]])
    for tests in (torch.tensor([1, 9, 2, 9]), torch.empty(0, dtype=torch.int64)):
        check("aten::isin.Tensor_Tensor", x, tests, invert=invert)
    check("aten::isin.Tensor_Tensor", SPECIAL, torch.tensor([0.0, math.nan, math.inf]))
    check_both("aten::isin.Tensor_Scalar", x, 4, invert=invert)
    check_both("aten::isin.Scalar_Tensor", 4, x, invert=invert)
