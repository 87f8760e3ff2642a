"""Rules of linalg_ldl.py: factors, pivots and info are LAPACK's; solutions to rounding."""

from __future__ import annotations

import pytest
import torch
from tests.lowering.harness import check

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def symmetric(*shape: int, dtype: torch.dtype, hermitian: bool) -> torch.Tensor:
    a = torch.randn(shape, dtype=dtype)
    return a + (a.mH if hermitian else a.mT)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("n", [1, 3, 9])
def test_factors_and_solutions(n: int, dtype: torch.dtype, hermitian: bool) -> None:
    torch.manual_seed(n)
    a = symmetric(2, n, n, dtype=dtype, hermitian=hermitian)
    check("aten::linalg_ldl_factor_ex", a, hermitian=hermitian, **CLOSE)
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    b = torch.randn(*a.shape[:-1], 3, dtype=dtype)
    check("aten::linalg_ldl_solve", factors, pivots, b, hermitian=hermitian, **CLOSE)


def test_blocks_of_two_where_the_diagonal_is_zero() -> None:
    torch.manual_seed(0)
    a = symmetric(4, 6, 6, dtype=torch.float32, hermitian=False)
    a.diagonal(dim1=-2, dim2=-1).zero_()
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a)
    assert (pivots < 0).any()
    check("aten::linalg_ldl_factor_ex", a, **CLOSE)
    check("aten::linalg_ldl_solve", factors, pivots, torch.randn(4, 6, 2), rtol=1e-4, atol=1e-4)


def test_singular_matrices_say_where() -> None:
    a = torch.zeros(3, 3)
    check("aten::linalg_ldl_factor_ex", a)
    a[0, 0] = 1
    check("aten::linalg_ldl_factor_ex", a)
    assert torch.linalg.ldl_factor_ex(a).info == 2


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)])
def test_empty(shape: tuple[int, ...]) -> None:
    check("aten::linalg_ldl_factor_ex", torch.zeros(shape))


def test_only_the_lower_triangle_is_read() -> None:
    torch.manual_seed(0)
    check("aten::linalg_ldl_factor_ex", torch.randn(5, 5), **CLOSE)
