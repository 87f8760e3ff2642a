"""Rules of special.py against CPU, over each branch of the approximations."""

import math

import pytest
import torch
from tests.lowering.harness import (
    check,
    check_filled,
    check_portable,
    full_arguments,
    make_case,
    overload_of,
)

from torch_neuronx.lowering.rules import special

NAN, INF = math.nan, math.inf
POINTS = [NAN, INF, -INF, 0.0, -0.0, 1e-6, 1e-3, -0.3, 0.49, 0.7, 1.0, -1.0, 1.9, 2.0, 2.05, 2.1]
POINTS += [-2.1, 3.3, 4.99, 5.0, 5.01, -5.5, 7.99, 8.01, 8.4, 12.0, -13.5, 25.0, 40.0, 60.0, -88.0]
# Near their zeros these lose the same digits as CPU's, but not the same bits of sin and cos.
LOOSE = {"special_airy_ai": 1e-4, "special_erfcx": 2e-5}


@pytest.mark.parametrize("name", special.UNARY)
def test_functions(name: str) -> None:
    x = torch.tensor(POINTS)
    check(f"aten::{name}", x, rtol=LOOSE.get(name, 5e-5), atol=2e-6)


@pytest.mark.parametrize("name", special.UNARY)
def test_functions_in_float64(name: str) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    check(f"aten::{name}", x, exact_float64=True, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["special_bessel_j0", "special_modified_bessel_k1"])
def test_integers(name: str) -> None:
    check(f"aten::{name}", torch.tensor([0, 1, 2, 7, 30]))


X = [-1.5, -1.0, -0.999, -0.4, 0.0, 0.1, 0.5, 0.9, 1.0, 1.2, 2.5]
N = [-1.0, 0.0, 1.0, 2.0, 3.7, 5.0, 7.0, 9.0, 14.0]


@pytest.mark.parametrize("name", special.POLYNOMIALS)
def test_polynomials(name: str) -> None:
    x, n = torch.tensor(X).unsqueeze(1), torch.tensor(N)
    # Recurrences cancel near zeros: the error is that of the largest term.
    check(f"aten::special_{name}", x, n, rtol=2e-4, atol=2e-4)
    check(f"aten::special_{name}", x.double(), n.double(), exact_float64=True, rtol=1e-9, atol=1e-9)
    check(f"aten::special_{name}", torch.tensor([1, 2, -3]), torch.tensor([2, 3, 4]))


def test_hermite_stops_at_its_limit() -> None:
    x = torch.tensor([0.1, 0.1, 0.1, 0.1])
    n = torch.tensor([200.0, INF, NAN, -3.0])
    check("aten::special_hermite_polynomial_h", x, n)
    check("aten::special_hermite_polynomial_he", x, n)


@pytest.mark.parametrize("name", ["special_airy_ai", "special_erfcx", "special_bessel_y1"])
def test_portable(name: str) -> None:
    check_portable(make_case(f"aten::{name}", [torch.tensor(POINTS)]))
    polynomial = overload_of("aten::special_laguerre_polynomial_l")
    filled = full_arguments(polynomial, [torch.tensor(X), torch.tensor(3.0)], {})
    check_portable(make_case("aten::special_laguerre_polynomial_l", filled))
    check_filled("aten::special_laguerre_polynomial_l", filled)
