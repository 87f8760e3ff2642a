"""Rules of linalg_portable.py: against LAPACK, on batches, singular and empty
matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import (
    check,
    check_portable,
    full_arguments,
    make_case,
    overload_of,
    run,
)

torch.manual_seed(0)
DTYPES = [torch.float32, torch.complex64]
WIDE = {"rtol": 1e-4, "atol": 1e-4}


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = matrix(*shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1])


def results(name: str, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The rule's results as tensors; dtypes and shapes are compared with CPU's."""
    case = make_case(f"aten::{name}", full_arguments(overload_of(f"aten::{name}"), args, kwargs))
    check_portable(case)
    got = run(case)
    for g, e in zip(got, case.expected, strict=True):
        assert g.shape == tuple(e.shape) and str(g.dtype) == str(e.dtype).removeprefix("torch.")
    return [torch.from_numpy(np.array(g)) for g in got]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool, dtype: torch.dtype) -> None:
    for shape in ((1, 1), (5, 5), (2, 3, 4, 4), (0, 0)):
        check("aten::linalg_cholesky_ex", positive(*shape, dtype=dtype), upper, **WIDE)
    factor = torch.linalg.cholesky(positive(2, 4, 4, dtype=dtype), upper=upper)
    check("aten::cholesky_inverse", factor, upper, **WIDE)
    b = matrix(2, 4, 3, dtype=dtype)
    check("aten::_cholesky_solve_helper", b, factor, upper, **WIDE)


def test_cholesky_tells_the_first_minor_that_is_not_positive() -> None:
    a = torch.stack([positive(4, 4), torch.diag(torch.tensor([1.0, 2, -1, 3])), torch.zeros(4, 4)])
    info = results("linalg_cholesky_ex", a)[1]
    assert info.tolist() == torch.linalg.cholesky_ex(a).info.tolist() == [0, 3, 1]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
def test_triangular(upper: bool, left: bool) -> None:
    for dtype in DTYPES:
        a = matrix(2, 4, 4, dtype=dtype) + 3 * torch.eye(4)
        b = matrix(4, 3, dtype=dtype) if left else matrix(3, 4, dtype=dtype)
        for unit in (False, True):
            check(
                "aten::linalg_solve_triangular",
                a / 2 if unit else a, b.expand(2, *b.shape), upper=upper, left=left,
                unitriangular=unit, rtol=1e-3, atol=1e-3,
            )  # fmt: skip
    check("aten::triangular_solve", matrix(2, 4, 3), a.real.clone(), upper, left, False, **WIDE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu(dtype: torch.dtype) -> None:
    for shape in ((1, 1), (5, 5), (2, 3, 4), (3, 4, 2), (0, 0), (0, 3, 3)):
        a = matrix(*shape, dtype=dtype)
        check("aten::linalg_lu_factor_ex", a, **WIDE)
        check("aten::linalg_lu", a, **WIDE)
    packed, pivots = torch.linalg.lu_factor(matrix(2, 4, 4, dtype=dtype))
    check("aten::lu_unpack", packed, pivots)
    check("aten::lu_unpack", packed, pivots, True, False)
    check("aten::lu_unpack", packed, pivots, False, True)
    b = matrix(2, 4, 4, dtype=dtype)
    for left in (True, False):
        for adjoint in (True, False):
            check(
                "aten::linalg_lu_solve", packed, pivots, b, left=left, adjoint=adjoint,
                rtol=1e-3, atol=1e-3,
            )  # fmt: skip
    check("aten::linalg_inv_ex", matrix(3, 4, 4, dtype=dtype), rtol=1e-3, atol=1e-3)


def test_lu_tells_a_zero_on_the_diagonal() -> None:
    singular = torch.tensor([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]])
    for name in ("linalg_lu_factor_ex", "linalg_inv_ex"):
        info = results(name, torch.stack([singular, torch.eye(3), torch.zeros(3, 3)]))[-1]
        assert info.tolist() == [3, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qr(dtype: torch.dtype) -> None:
    for shape in ((4, 4), (5, 3), (3, 5), (2, 4, 3), (1, 1), (3, 0)):
        a = matrix(*shape, dtype=dtype)
        for mode in ("reduced", "complete", "r"):
            check("aten::linalg_qr", a, mode, **WIDE)
        check("aten::geqrf", a, **WIDE)
    packed, taus = torch.geqrf(matrix(2, 5, 3, dtype=dtype))
    check("aten::linalg_householder_product", packed, taus, **WIDE)
    for transpose in (False, True):
        check("aten::ormqr", packed, taus, matrix(2, 5, 4, dtype=dtype), True, transpose, **WIDE)
        check("aten::ormqr", packed, taus, matrix(2, 4, 5, dtype=dtype), False, transpose, **WIDE)


def test_qr_of_columns_that_vanish() -> None:
    a = matrix(4, 3)
    a[:, 1] = 0
    check("aten::linalg_qr", a, **WIDE)
    check("aten::geqrf", torch.zeros(3, 3))


def test_float64() -> None:
    a = matrix(6, 6).double()
    close = {"exact_float64": True, "rtol": 1e-9, "atol": 1e-9}
    check("aten::linalg_lu_factor_ex", a, **close)
    check("aten::linalg_qr", a, **close)


@pytest.mark.parametrize("bad", [0, -1, 4])
def test_unpacking_refuses_pivots_out_of_range(bad: int) -> None:
    check_error("aten::lu_unpack", torch.eye(3), torch.tensor([1, 2, bad], dtype=torch.int32))


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (1, 2)])
def test_nan_reaches_the_solution(place: tuple[int, int]) -> None:
    a = torch.eye(3) + 0.1
    a[place] = math.nan
    inverse, info = results("linalg_inv_ex", a)
    assert inverse.isnan().all()
    assert info == 0
    packed, pivots, _ = results("linalg_lu_factor_ex", a)
    assert results("linalg_lu_solve", packed, pivots, torch.ones(3, 1))[0].isnan().all()


def test_factors_beside_nan_stay_numbers() -> None:
    a = torch.eye(3) + 0.1
    a[1, 2] = math.nan
    check("aten::linalg_lu_factor_ex", a)
