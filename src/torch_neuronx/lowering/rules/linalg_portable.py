"""Factorisations and solvers in plain StableHLO.

JAX would lower these to LAPACK's handlers on CPU, which no other plugin has, so they are written
out here as loops over columns with LAPACK's conventions (signs of reflectors, one-based
pivots, ``info``). Each algorithm is written for one matrix and mapped over the batch. Cost: a loop
step is a matrix-vector or rank-one operation, so large matrices are slower than LAPACK's blocked
code, but no less accurate.

* Cholesky: column by column (left-looking). ``info``: order of the first minor that is not
  positive.
* LU: partial pivoting, right-looking. ``info``: the first zero on U's diagonal.
* QR: Householder reflectors as LAPACK's geqrf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.table import lowers

_HIGHEST = lax.Precision.HIGHEST


def matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=_HIGHEST)


def hermitian(a: Any) -> Any:
    """Conjugate transpose of the last two dimensions."""
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _t(a: Any) -> Any:
    return jnp.swapaxes(a, -1, -2)


def batched(function: Callable[..., Any], *arrays: Any, ranks: tuple[int, ...]) -> Any:
    """``function`` on the last ``ranks[i]`` dimensions of each array, over broadcast batches."""
    batches = [a.shape[: a.ndim - r] for a, r in zip(arrays, ranks, strict=True)]
    batch = np.broadcast_shapes(*batches)
    flat = [
        jnp.broadcast_to(a, (*batch, *a.shape[a.ndim - r :])).reshape(
            math.prod(batch), *a.shape[a.ndim - r :]
        )
        for a, r in zip(arrays, ranks, strict=True)
    ]
    if not batch:
        return function(*(a[0] for a in flat))
    results = jax.vmap(function)(*flat)

    def restore(x: Any) -> Any:
        return x.reshape(*batch, *x.shape[1:])

    return tuple(map(restore, results)) if isinstance(results, tuple) else restore(results)


def _column(a: Any, j: Any) -> Any:
    return lax.dynamic_index_in_dim(a, j, 1, keepdims=False)


def _row(a: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(a, i, 0, keepdims=False)


# --- Cholesky ----------------------------------------------------------------------------------


def _cholesky_one(a: Any) -> tuple[Any, Any]:
    """Lower factor from the lower triangle, and info."""
    n = a.shape[0]
    if n == 0:
        return a, jnp.int32(0)
    rows = jnp.arange(n)

    def step(j: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        factor, info = state
        # Columns from j on are still zero, so the products below stop there by themselves.
        rest = _column(a, j) - jnp.matmul(factor, jnp.conj(_row(factor, j)), precision=_HIGHEST)
        pivot = lax.dynamic_index_in_dim(rest, j, keepdims=False).real
        info = jnp.where((info == 0) & ~(pivot > 0), (j + 1).astype(np.int32), info)
        column = rest / jnp.sqrt(jnp.where(pivot > 0, pivot, jnp.ones_like(pivot)))
        column = jnp.where(rows == j, jnp.sqrt(pivot).astype(a.dtype), column)
        column = jnp.where((rows >= j) & (info == 0), column, jnp.zeros_like(column))
        return lax.dynamic_update_index_in_dim(factor, column, j, 1), info

    return lax.fori_loop(0, n, step, (jnp.zeros_like(a), jnp.int32(0)))


def cholesky(a: Any, upper: bool) -> tuple[Any, Any]:
    """Cholesky factor from the triangle that ``upper`` names, and info, over batches."""
    factor, info = batched(_cholesky_one, hermitian(a) if upper else a, ranks=(2,))
    return (hermitian(factor) if upper else factor), info


@lowers("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(self: Any, upper: bool = False, check_errors: bool = False) -> Any:
    """Cholesky factor and info; raising for info is the caller's part (C++)."""
    return cholesky(self, upper)


# --- triangular systems ------------------------------------------------------------------------


def _substitute(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    """X with A X = B by substitution, A triangular, for one matrix."""
    n = a.shape[0]
    if n == 0 or b.shape[1] == 0:
        return b
    columns = jnp.arange(n)

    def step(k: Any, x: Any) -> Any:
        i = n - 1 - k if upper else k
        row = _row(a, i)
        solved = columns > i if upper else columns < i
        row = jnp.where(solved, row, jnp.zeros_like(row))
        value = _row(b, i) - jnp.matmul(row, x, precision=_HIGHEST)
        if not unit:
            value = value / lax.dynamic_index_in_dim(_row(a, i), i, keepdims=False)
        return lax.dynamic_update_index_in_dim(x, value, i, 0)

    return lax.fori_loop(0, n, step, jnp.zeros_like(b))


def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unit: bool = False) -> Any:
    """X with A X = B, or X A = B, over broadcast batches."""
    if not left:
        return _t(solve_triangular(_t(a), _t(b), upper=not upper, unit=unit))
    return batched(lambda p, q: _substitute(p, q, upper, unit), a, b, ranks=(2, 2))


@lowers("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    self: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X with A X = B, or X A = B, of a triangular A."""
    return solve_triangular(self, B, upper=upper, left=left, unit=unitriangular)


@lowers("aten::triangular_solve")
def triangular_solve(
    self: Any,
    A: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    out: Any,
) -> tuple[Any, Any]:
    """X with A X = self, or A^T X = self; and A expanded to the batch."""
    whole = jnp.broadcast_to(A, out[1].shape)
    if transpose:
        x = solve_triangular(_t(A), self, upper=not upper, unit=unitriangular)
    else:
        x = solve_triangular(A, self, upper=upper, unit=unitriangular)
    return x, whole


@lowers("aten::_cholesky_solve_helper")
def cholesky_solve_helper(self: Any, A: Any, upper: bool) -> Any:
    """X with (L L^H) X = self, or (U^H U) X = self."""
    lower = hermitian(A) if upper else A
    y = solve_triangular(lower, self, upper=False)
    return solve_triangular(hermitian(lower), y, upper=True)


@lowers("aten::cholesky_inverse")
def cholesky_inverse(self: Any, upper: bool = False) -> Any:
    """Inverse of the matrix whose Cholesky factor is given."""
    lower = hermitian(self) if upper else self
    eye = jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape)
    inverse = solve_triangular(lower, eye, upper=False)
    return matmul(hermitian(inverse), inverse)


# --- LU ----------------------------------------------------------------------------------------


def _lu_one(a: Any, pivot: bool) -> tuple[Any, Any, Any]:
    """Packed factors, one-based pivots and info of one matrix."""
    m, n = a.shape
    k = min(m, n)
    if k == 0:
        return a, jnp.zeros(0, np.int32), jnp.int32(0)
    rows, columns = jnp.arange(m), jnp.arange(n)

    def step(j: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        x, pivots, info = state
        column = _column(x, j)
        if pivot:
            # LAPACK's magnitude of a complex number here.
            size = (
                jnp.abs(column.real) + jnp.abs(column.imag)
                if a.dtype.kind == "c"
                else (jnp.abs(column))
            )
            # nan is the largest, so that no zero below it makes the matrix look singular.
            size = jnp.where(jnp.isnan(size), jnp.full_like(size, np.inf), size)
            size = jnp.where(rows >= j, size, jnp.full_like(size, -1))
            p = jnp.argmax(size).astype(np.int32)
            one, other = _row(x, j), _row(x, p)
            x = lax.dynamic_update_index_in_dim(x, other, j, 0)
            x = lax.dynamic_update_index_in_dim(x, one, p, 0)
            column = _column(x, j)
        else:
            p = j.astype(np.int32)
        pivots = lax.dynamic_update_index_in_dim(pivots, p + 1, j, 0)
        head = lax.dynamic_index_in_dim(column, j, keepdims=False)
        info = jnp.where((info == 0) & (head == 0), (j + 1).astype(np.int32), info)
        safe = jnp.where(head == 0, jnp.ones_like(head), head)
        factors = column / safe
        rest = (rows > j)[:, None] & (columns > j)[None, :]  # the others stay, whatever nan is near
        x = jnp.where(rest, x - factors[:, None] * _row(x, j)[None, :], x)
        column = jnp.where(rows > j, factors, column)
        return lax.dynamic_update_index_in_dim(x, column, j, 1), pivots, info

    start = (a, jnp.zeros(k, np.int32), jnp.int32(0))
    return lax.fori_loop(0, k, step, start)


def lu_factor(a: Any, pivot: bool = True) -> tuple[Any, Any, Any]:
    """Packed LU, pivots and info, over batches."""
    return batched(lambda x: _lu_one(x, pivot), a, ranks=(2,))


def _permutation(pivots: Any, m: int) -> Any:
    """Row order of one matrix after LAPACK's row exchanges: (P^T A) = A[order]."""
    if pivots.shape[0] == 0:
        return jnp.arange(m, dtype=np.int32)

    def step(i: Any, order: Any) -> Any:
        p = lax.dynamic_index_in_dim(pivots, i, keepdims=False) - 1
        one = lax.dynamic_index_in_dim(order, i, keepdims=False)
        other = lax.dynamic_index_in_dim(order, p, keepdims=False)
        order = lax.dynamic_update_index_in_dim(order, other, i, 0)
        return lax.dynamic_update_index_in_dim(order, one, p, 0)

    return lax.fori_loop(0, pivots.shape[0], step, jnp.arange(m, dtype=np.int32))


def _unpack(packed: Any) -> tuple[Any, Any]:
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower = jnp.tril(packed[..., :, :k], -1) + jnp.eye(m, k, dtype=packed.dtype)
    return lower, jnp.triu(packed[..., :k, :])


def _permutation_matrix(pivots: Any, m: int, dtype: Any) -> Any:
    order = batched(lambda p: _permutation(p, m), pivots, ranks=(1,))
    return (order[..., None, :] == jnp.arange(m)[:, None]).astype(dtype)


@lowers("aten::linalg_lu_factor_ex")
def linalg_lu_factor_ex(A: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    """Packed LU factors, pivots and info."""
    return lu_factor(A, pivot)


@lowers("aten::linalg_lu")
def linalg_lu(A: Any, pivot: bool = True, *, out: Any) -> tuple[Any, Any, Any]:
    """P, L and U; without pivoting P is empty."""
    packed, pivots, _ = lu_factor(A, pivot)
    lower, upper = _unpack(packed)
    if not pivot:
        return jnp.zeros(out[0].shape, A.dtype), lower, upper
    return _permutation_matrix(pivots, A.shape[-2], A.dtype), lower, upper


@lowers("aten::lu_unpack")
def lu_unpack(
    LU_data: Any,
    LU_pivots: Any,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    out: Any,
    checks: Checks,
) -> tuple[Any, Any, Any]:
    """P, L and U of packed factors; what is not asked for is empty."""
    lower, upper = (
        _unpack(LU_data)
        if unpack_data
        else (jnp.zeros(out[1].shape, LU_data.dtype), jnp.zeros(out[2].shape, LU_data.dtype))
    )
    if not unpack_pivots:
        return jnp.zeros(out[0].shape, LU_data.dtype), lower, upper
    rows = LU_data.shape[-2]
    checks.require(
        (LU_pivots >= 1) & (LU_pivots <= rows),
        LU_pivots,
        "RuntimeError",
        "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
        "Did you properly pass the result of lu_factor?",
    )
    return _permutation_matrix(jnp.clip(LU_pivots, 1, rows), rows, LU_data.dtype), lower, upper


def _lu_solve_one(packed: Any, pivots: Any, b: Any, adjoint: bool) -> Any:
    order = _permutation(pivots, packed.shape[0])
    if not adjoint:
        y = _substitute(packed, b[order], False, True)
        return _substitute(packed, y, True, False)
    h = jnp.conj(packed.T)
    y = _substitute(h, b, False, False)
    y = _substitute(h, y, True, True)
    return jnp.zeros_like(y).at[order].set(y, unique_indices=True)


def lu_solve(packed: Any, pivots: Any, b: Any, left: bool = True, adjoint: bool = False) -> Any:
    """X with A X = B (or A^H X = B, or with X on the left) from A's factors."""
    if not left:
        # X A = B is A^H X^H = B^H.
        return hermitian(lu_solve(packed, pivots, hermitian(b), True, not adjoint))
    return batched(
        lambda p, q, r: _lu_solve_one(p, q, r, adjoint), packed, pivots, b, ranks=(2, 1, 2)
    )


@lowers("aten::linalg_lu_solve")
def linalg_lu_solve(LU: Any, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> Any:
    """Solution of a system from its LU factors."""
    return lu_solve(LU, pivots, B, left, adjoint)


@lowers("aten::linalg_inv_ex")
def linalg_inv_ex(A: Any, check_errors: bool = False) -> tuple[Any, Any]:
    """Inverse and info."""
    packed, pivots, info = lu_factor(A)
    eye = jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)
    return lu_solve(packed, pivots, eye), info


# --- Householder QR ----------------------------------------------------------------------------


def geqrf_one(a: Any) -> tuple[Any, Any]:
    """R above the diagonal, reflectors below, and tau."""
    m, n = a.shape
    k = min(m, n)
    if k == 0:
        return a, jnp.zeros(k, a.dtype)
    rows = jnp.arange(m)
    complex_ = a.dtype.kind == "c"

    def step(j: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        x, taus = state
        column = _column(x, j)
        below = jnp.where(rows > j, column, jnp.zeros_like(column))
        head = lax.dynamic_index_in_dim(column, j, keepdims=False)
        scale = jnp.max(jnp.abs(jnp.where(rows >= j, column, jnp.zeros_like(column))))
        safe = jnp.where(scale > 0, scale, jnp.ones_like(scale))
        tail = jnp.sum(jnp.square(jnp.abs(below / safe)))
        norm = safe * jnp.sqrt(tail + jnp.square(jnp.abs(head / safe)))
        real = head.real
        beta = jnp.where(real >= 0, -norm, norm)
        # Nothing below and a real head: no reflection.
        still = tail == 0
        if complex_:
            still = still & (head.imag == 0)
        beta = jnp.where(still, real, beta)
        divisor = jnp.where(still, jnp.ones_like(beta), beta)
        tau = (beta.astype(a.dtype) - head) / divisor.astype(a.dtype)
        tau = jnp.where(still, jnp.zeros_like(tau), tau)
        gap = jnp.where(still, jnp.ones_like(head), head - beta.astype(a.dtype))
        v = jnp.where(rows == j, jnp.ones_like(column), below / gap)
        columns = jnp.arange(n)
        product = jnp.matmul(jnp.conj(v), x, precision=_HIGHEST)
        product = jnp.where(columns > j, product, jnp.zeros_like(product))
        x = x - jnp.conj(tau) * v[:, None] * product[None, :]
        kept = jnp.where(rows == j, beta.astype(a.dtype), jnp.where(rows > j, v, column))
        x = lax.dynamic_update_index_in_dim(x, kept, j, 1)
        return x, lax.dynamic_update_index_in_dim(taus, tau, j, 0)

    return lax.fori_loop(0, k, step, (a, jnp.zeros(k, a.dtype)))


def apply_reflectors(packed: Any, taus: Any, c: Any, adjoint: bool) -> Any:
    """Q C (or Q^H C) with Q = H_1 ... H_k from reflectors below the diagonal."""
    m, k = packed.shape[0], taus.shape[0]
    if k == 0 or c.shape[1] == 0:
        return c
    rows = jnp.arange(m)

    def step(i: Any, c: Any) -> Any:
        j = i if adjoint else k - 1 - i
        column = _column(packed, j)
        v = jnp.where(rows > j, column, jnp.zeros_like(column))
        v = jnp.where(rows == j, jnp.ones_like(v), v)
        tau = lax.dynamic_index_in_dim(taus, j, keepdims=False)
        tau = jnp.conj(tau) if adjoint else tau
        product = jnp.matmul(jnp.conj(v), c, precision=_HIGHEST)
        return c - tau * v[:, None] * product[None, :]

    return lax.fori_loop(0, k, step, c)


@lowers("aten::geqrf")
def geqrf(self: Any) -> tuple[Any, Any]:
    """R and reflectors, and their scales."""
    return batched(geqrf_one, self, ranks=(2,))


@lowers("aten::linalg_householder_product")
def linalg_householder_product(input: Any, tau: Any) -> Any:
    """The first columns of the product of reflectors."""
    m, n = input.shape[-2:]
    eye = jnp.eye(m, n, dtype=input.dtype)
    return batched(lambda p, t: apply_reflectors(p, t, eye, False), input, tau, ranks=(2, 1))


@lowers("aten::ormqr")
def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    """Q C, Q^H C, C Q or C Q^H with Q from geqrf."""
    if not left:
        return hermitian(ormqr(self, input2, hermitian(input3), True, not transpose))
    return batched(
        lambda p, t, c: apply_reflectors(p, t, c, transpose), self, input2, input3, ranks=(2, 1, 2)
    )


def _qr_one(a: Any, mode: str) -> tuple[Any, Any]:
    m, n = a.shape
    packed, taus = geqrf_one(a)
    k = m if mode == "complete" else min(m, n)
    r = jnp.triu(packed[:k])
    if mode == "r":
        return jnp.zeros(0, a.dtype), r
    return apply_reflectors(packed, taus, jnp.eye(m, k, dtype=a.dtype), False), r


@lowers("aten::linalg_qr")
def linalg_qr(A: Any, mode: str = "reduced", *, out: Any) -> tuple[Any, Any]:
    """Q and R; mode "r" leaves Q empty."""
    q, r = batched(lambda a: _qr_one(a, mode), A, ranks=(2,))
    return (jnp.zeros(out[0].shape, A.dtype) if mode == "r" else q), r
