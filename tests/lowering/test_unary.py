"""Functions of one operand on special values, in every float dtype and on integers."""

import math

import pytest
import torch
from tests.lowering.harness import check, check_both

from torch_neuronx.lowering.rules import unary

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.999, 3e-3, 7.0, -88.0]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
# Names whose rule is not ``name(self)`` and is tested below.
FUNCTIONS = sorted({*unary.FLOAT, *unary.EXACT, "abs", "sgn", "angle"})
NOT_FLOAT = {"bitwise_not"}
FLOAT32_ONLY = {"special_log_ndtr", "special_ndtri"}
# XLA evaluates these with float32 polynomials that lose digits near a zero or for large operands.
LOOSE = {"digamma": 2e-4, "lgamma": 1e-4, "special_log_ndtr": 1e-4, "special_ndtri": 1e-4}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in NOT_FLOAT])
def test_special_values(name: str, dtype: torch.dtype) -> None:
    if name in FLOAT32_ONLY and dtype is not torch.float32:
        pytest.skip("CPU has no kernel to compare with")
    tolerance = LOOSE.get(name) if dtype is torch.float32 else None
    check(f"aten::{name}", torch.tensor(SPECIAL, dtype=dtype), rtol=tolerance, atol=tolerance)


INTEGERS = [n for n in FUNCTIONS if n not in {"frac", "_neg_view", "_neg_view_copy"}]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    x = torch.tensor([-3, 0, 1, 2, 100])
    check(f"aten::{name}", x, rtol=LOOSE.get(name))


@pytest.mark.parametrize("name", ["abs", "sgn", "angle", "exp", "log", "sqrt", "tanh", "sigmoid"])
def test_complex(name: str) -> None:
    x = torch.tensor([1 + 2j, -0.5 - 1j, 0.25j, 0j + 3])
    check(f"aten::{name}", x)


def test_float64_is_exact_where_values_only_move() -> None:
    x = torch.tensor([1.0 + 2**-50, -2.5], dtype=torch.float64)
    check("aten::neg", x, rtol=0, atol=0)
    check("aten::frac", x, rtol=0, atol=0)
    check("aten::exp", x, exact_float64=True, rtol=1e-14, atol=0)


@pytest.mark.parametrize("decimals", [0, 2, -2])
def test_round_decimals(decimals: int) -> None:
    check("aten::round.decimals", torch.tensor([1.005, 123.456, -250.0, 0.5]), decimals=decimals)


def test_half_rounds_to_even() -> None:
    check("aten::round", torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]), rtol=0, atol=0)


@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit(eps: float | None) -> None:
    check_both("aten::logit", torch.tensor([0.0, 0.05, 0.3, 1.0, 1.5, NAN]), eps)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_polygamma(n: int) -> None:
    check("aten::polygamma", n, torch.tensor([0.5, 1.0, 7.25, -1.5, 30.0]), rtol=2e-4)


def test_mvlgamma_and_zeta() -> None:
    check("aten::mvlgamma", torch.tensor([3.0, 5.5]), 3)
    q = torch.tensor([1.0, 0.5, 3.0, 40.0, 2.0, -0.5])
    x = torch.tensor([2.0, 3.5, 1.0, 1.5, 0.5, 3.0])
    check("aten::special_zeta", x, q)


def test_magnitudes_are_exact_in_float64() -> None:
    x = torch.tensor([-1.0 - 2**-50, -1e-300, -1e300], dtype=torch.float64)
    check("aten::abs", x, rtol=0, atol=0)
