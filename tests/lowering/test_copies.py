"""Copies and casts between every pair of dtypes."""

import math

import pytest
import torch
from tests.lowering.harness import check

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 2.75, 100.0, 3.3]).to(source)
    check("aten::_to_copy", x, dtype=target, rtol=0, atol=0)
    check("aten::copy", torch.zeros(2, 5, dtype=target), x, rtol=0, atol=0)


@pytest.mark.parametrize("target", [torch.int8, torch.int32, torch.int64], ids=str)
def test_negative_numbers_truncate(target: torch.dtype) -> None:
    for source in (torch.float32, torch.bfloat16, torch.float64, torch.int16):
        check("aten::_to_copy", torch.tensor([-1.75, -0.5, -100.0]).to(source), dtype=target)


def test_integers_wrap() -> None:
    x = torch.tensor([300, -1, 2**31 + 5, 2**40 + 7])
    for target in (torch.uint8, torch.int8, torch.int16, torch.int32):
        check("aten::_to_copy", x, dtype=target)


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.bool], ids=str)
def test_special_values(target: torch.dtype) -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 65520.0, 1e-3])
    check("aten::_to_copy", x, dtype=target, rtol=0, atol=0)
    check("aten::_to_copy", x.double(), dtype=target, rtol=0, atol=0)


def test_rounding_to_nearest_even() -> None:
    x = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])
    check("aten::_to_copy", x, dtype=torch.bfloat16, rtol=0, atol=0)


def test_clone_of_a_view() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()[1:]
    check("aten::clone", x)
    check("aten::clone", x, memory_format=torch.contiguous_format)


def test_conjugation() -> None:
    z = torch.tensor([1 + 2j, -3j])
    for name in ("_conj", "_conj_copy", "_conj_physical"):
        check(f"aten::{name}", z)
    check("aten::_neg_view", torch.tensor([1.0, -2.0]))
    check("aten::clone", z.conj())
