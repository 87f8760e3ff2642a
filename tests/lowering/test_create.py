"""Creation and copies."""

import math
from typing import Any

import pytest
import torch
from tests.lowering.harness import check, check_both

X = torch.arange(6.0).reshape(2, 3)
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_constants(dtype: torch.dtype) -> None:
    check("aten::zeros", [2, 3], dtype=dtype)
    check("aten::ones", [2, 0], dtype=dtype)
    check("aten::zeros_like", X, dtype=dtype)
    check("aten::ones_like", X.to(dtype))
    check("aten::new_zeros", X.to(dtype), [4])
    check("aten::new_ones", X, [4], dtype=dtype)
    for value in (True, 3, 2.5):
        check_both("aten::full", [2, 2], value, dtype=dtype)
        check_both("aten::full_like", X.to(dtype), value)
        check_both("aten::new_full", X.to(dtype), [3], value)
        check_both("aten::fill.Scalar", X.to(dtype), value)
        check_both("aten::scalar_tensor", value, dtype=dtype)
        check("aten::fill.Tensor", X.to(dtype), torch.tensor(value))
    check("aten::zero", X.to(dtype))
    check("aten::eye", 3, dtype=dtype)
    check("aten::eye.m", 2, 4, dtype=dtype)


def test_inferred_dtypes() -> None:
    check_both("aten::full", [2], math.inf)
    check_both("aten::full", [2], 2**40)
    check_both("aten::full", [2], True)
    check("aten::ones", [2])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("empty.memory_format", [[2, 3]]),
        ("empty_like", [X]),
        ("empty_strided", [[2, 3], [1, 2]]),
        ("empty_permuted", [[2, 3], [1, 0]]),
        ("new_empty", [X, [4]]),
        ("new_empty_strided", [X, [2, 2], [1, 2]]),
    ],
)
def test_uninitialised(name: str, args: list[Any]) -> None:
    check(f"aten::{name}", *args, values=False)


@pytest.mark.parametrize(
    "args", [(5,), (2, 7), (2.5, 6), (0, 1, 0.1), (10, -3, -4), (0, 7, 2), (1, 1)], ids=str
)
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_arange(args: tuple[float, ...], dtype: torch.dtype | None) -> None:
    name = {1: "arange", 2: "arange.start", 3: "arange.start_step"}[len(args)]
    check_both(f"aten::{name}", *args, dtype=dtype)


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 50])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int64], ids=str)
def test_linspace(steps: int, dtype: torch.dtype | None) -> None:
    check_both("aten::linspace", -3, 10, steps, dtype=dtype)
    check_both("aten::linspace", 9.6, -2.5, steps, dtype=dtype)
    if dtype is None:
        check_both("aten::logspace", -1, 2, steps, 2.0)
        check("aten::linspace.Tensor_Tensor", torch.tensor(1.0), torch.tensor(5.0), steps)
        check("aten::linspace.Tensor_Scalar", torch.tensor(1.0), 5, steps)
        check("aten::linspace.Scalar_Tensor", 1, torch.tensor(5.0), steps)


@pytest.mark.parametrize("offset", [0, 1, -1])
def test_triangle_indices(offset: int) -> None:
    check("aten::tril_indices", 3, 4, offset)
    check("aten::triu_indices", 4, 3, offset, dtype=torch.int32)


def test_complex_construction() -> None:
    a, b = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    check("aten::complex", a, b)
    check("aten::polar", a, b)


def test_range_includes_its_end() -> None:
    check_both("aten::range", 1, 4)
    check_both("aten::range.step", 0.5, 3.0, 0.25)
    check_both("aten::range.step", 5, -1, -2, dtype=torch.int64)


def test_logspace_of_integers_truncates_its_ends_first() -> None:
    check("aten::logspace", 0.9, 3.1, 3, 2.0, dtype=torch.uint8)
