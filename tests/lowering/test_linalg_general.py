"""Rules of linalg_general.py: eigenvalues against LAPACK as sets, vectors by A V = V diag(w).

The order of eigenvalues and the phase of vectors are free, except that a pair is adjacent and
exactly conjugate.
"""

from __future__ import annotations

import pytest
import torch
from tests.lowering.test_linalg_spectral import results

EVERY = [torch.float32, torch.complex64]


def check_eigen(a: torch.Tensor, rtol: float = 2e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues and vectors of one matrix, checked."""
    n = a.shape[-1]
    values, vectors = results("linalg_eig", a)
    (alone,) = results("_linalg_eigvals", a)
    size = max(a.abs().max().item(), torch.finfo(torch.float32).tiny) * max(n, 1)
    wide = vectors.to(torch.complex128)
    error = a.to(torch.complex128) @ wide - wide * values.to(torch.complex128).unsqueeze(-2)
    assert error.abs().max().item() <= rtol * size
    torch.testing.assert_close(vectors.norm(dim=-2), torch.ones(a.shape[:-1]), rtol=0, atol=1e-6)
    # What the vectors cost must not change the values by more than rounding.
    torch.testing.assert_close(alone, values, rtol=rtol, atol=rtol * size)
    return values, vectors


def nearest(values: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance from a value to the nearest expected one, and back."""
    distance = (values[:, None].to(torch.complex128) - expected[None, :]).abs()
    return max(distance.amin(0).max().item(), distance.amin(1).max().item())


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 20])
def test_random_matrices(n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    a = torch.randn(n, n, dtype=dtype)
    values, _ = check_eigen(a)
    expected = torch.linalg.eigvals(a.to(torch.complex128))
    assert nearest(values, expected) <= 1e-4 * max(1.0, expected.abs().max().item())


def test_batches_are_independent() -> None:
    torch.manual_seed(0)
    a = torch.randn(2, 3, 5, 5)
    values, _ = check_eigen(a)
    for i in range(2):
        for j in range(3):
            expected = torch.linalg.eigvals(a[i, j].double())
            assert nearest(values[i, j], expected) <= 1e-4


def test_pairs_of_a_real_matrix_are_exact_conjugates_positive_first() -> None:
    torch.manual_seed(1)
    values, vectors = check_eigen(torch.randn(9, 9))
    pairs = [i for i in range(9) if values[i].imag > 0]
    assert pairs
    for i in pairs:
        assert values[i + 1] == values[i].conj()
        assert torch.equal(vectors[:, i + 1], vectors[:, i].conj())
    real = values.imag == 0
    assert real.sum() + 2 * len(pairs) == 9
    assert torch.equal(vectors[:, real].imag, torch.zeros(9, int(real.sum())))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_special_matrices(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    turn = torch.tensor([[0.0, -1], [1, 0]])
    jordan = torch.diag(torch.ones(5), 1)  # one eigenvalue, one vector
    a = torch.stack(
        [
            torch.eye(6),
            torch.zeros(6, 6),
            torch.ones(6, 6),
            torch.eye(6).roll(1, 0),  # roots of one: without shifts the iteration stands still
            torch.eye(6).flip(0),
            torch.block_diag(turn, turn, turn),
            1e30 * torch.randn(6, 6),
            1e-30 * torch.randn(6, 6),
            jordan,
        ]
    )
    values, vectors = results("linalg_eig", a.to(dtype))
    for matrix, found, columns in zip(a, values, vectors, strict=True):
        scale = max(matrix.abs().max().item(), 1e-35)
        expected = torch.linalg.eigvals((matrix / scale).double())
        # The eigenvalues of a Jordan block of order n move by the n-th root of a rounding.
        wide = 0.2 if torch.equal(matrix, jordan) else 1e-5
        assert nearest(found / scale, expected) <= wide
        exact = (matrix / scale).to(torch.complex128)
        wide_columns = columns.to(torch.complex128)
        error = exact @ wide_columns - wide_columns * (found / scale).to(torch.complex128)
        assert error.abs().max().item() <= 1e-5


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)])
def test_empty(shape: tuple[int, ...]) -> None:
    values, vectors = results("linalg_eig", torch.zeros(shape))
    assert values.shape == shape[:-1] and vectors.shape == shape
