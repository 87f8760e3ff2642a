"""Rules of linalg_spectral.py: values against LAPACK, vectors by reconstruction, as their signs are
free; batches, low ranks and empty matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
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


def results(name: str, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The rule's results as tensors; dtypes and shapes are compared with CPU's."""
    case = make_case(f"aten::{name}", full_arguments(overload_of(f"aten::{name}"), args, kwargs))
    check_portable(case)
    got = run(case)
    for g, e in zip(got, case.expected, strict=True):
        assert g.shape == tuple(e.shape) and str(g.dtype) == str(e.dtype).removeprefix("torch.")
    return [torch.from_numpy(np.array(g)) for g in got]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_eigh(n: int, dtype: torch.dtype) -> None:
    a = matrix(2, n, n, dtype=dtype)
    a = a + a.mH
    values, vectors = results("_linalg_eigh", a)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(a), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        vectors @ torch.diag_embed(values).to(dtype) @ vectors.mH, a, rtol=1e-4, atol=1e-4
    )
    eye = torch.eye(n, dtype=dtype).expand(2, n, n)
    torch.testing.assert_close(vectors.mH @ vectors, eye, rtol=1e-5, atol=1e-5)


def test_eigh_reads_one_triangle_and_repeated_values() -> None:
    a = matrix(5, 5)
    for uplo in ("L", "U"):
        check("aten::_linalg_eigh", a, uplo, False, **WIDE)
    values, vectors = results("_linalg_eigh", torch.ones(6, 6))
    torch.testing.assert_close(values, torch.tensor([0.0, 0, 0, 0, 0, 6]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True])
def test_svd(full: bool, dtype: torch.dtype) -> None:
    low_rank = matrix(6, 2, dtype=dtype) @ matrix(2, 4, dtype=dtype)
    for a in (
        matrix(2, 4, 4, dtype=dtype), matrix(5, 3, dtype=dtype), matrix(3, 5, dtype=dtype),
        low_rank, torch.zeros(3, 2, dtype=dtype), matrix(1, 1, dtype=dtype),
        matrix(3, 0, dtype=dtype),
    ):  # fmt: skip
        u, s, vh = results("_linalg_svd", a, full)
        torch.testing.assert_close(s, torch.linalg.svdvals(a), rtol=1e-4, atol=1e-4)
        k = s.shape[-1]
        rebuilt = u[..., :k] * s.to(dtype).unsqueeze(-2) @ vh[..., :k, :]
        torch.testing.assert_close(rebuilt, a, rtol=1e-4, atol=1e-4)
        for q in (u, vh.mH):
            eye = torch.eye(q.shape[-1], dtype=dtype).expand(*q.shape[:-2], -1, -1)
            torch.testing.assert_close(q.mH @ q, eye, rtol=1e-5, atol=1e-5)


def test_singular_values_alone_and_scales() -> None:
    check("aten::_linalg_svd", matrix(2, 4, 6), False, False, **WIDE)
    check("aten::_linalg_svd", matrix(4, 4) * 1e25, False, False, rtol=1e-4)
    check("aten::_linalg_svd", matrix(4, 4) * 1e-25, False, False, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrix_exp(dtype: torch.dtype) -> None:
    a = matrix(3, 4, 4, dtype=dtype) * torch.tensor([0.1, 1.0, 3.0]).view(3, 1, 1)
    check("aten::linalg_matrix_exp", a, rtol=1e-3, atol=1e-4)
    check("aten::linalg_matrix_exp", matrix(1, 1, dtype=dtype))


def test_matrix_exp_of_a_reduced_float() -> None:
    check("aten::linalg_matrix_exp", matrix(3, 3).bfloat16(), rtol=0.05, atol=0.05)


def test_float64() -> None:
    a = matrix(6, 6).double()
    close = {"exact_float64": True, "rtol": 1e-9, "atol": 1e-9}
    check("aten::linalg_matrix_exp", a, **close)
    check("aten::_linalg_eigh", a, "L", False, **close)
    check("aten::_linalg_svd", a, False, False, **close)


def test_larger_matrices() -> None:
    a = matrix(64, 64)
    values, vectors = results("_linalg_eigh", a + a.T)
    rebuilt = vectors @ torch.diag(values) @ vectors.T
    torch.testing.assert_close(rebuilt, a + a.T, rtol=1e-4, atol=2e-4)
    u, s, vh = results("_linalg_svd", a)
    torch.testing.assert_close(u * s @ vh, a, rtol=1e-4, atol=2e-4)
