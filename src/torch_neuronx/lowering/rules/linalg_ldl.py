"""LDL factorisation of indefinite symmetric and Hermitian matrices, in plain StableHLO.

Bunch and Kaufman's diagonal pivoting (Golub and Van Loan, "Matrix Computations", 4th ed., 4.4) with
the conventions of LAPACK's sytf2 and hetf2 for the lower triangle: one-based pivots, negative and
twice the same for a block of two, exchanges that leave earlier columns alone, ``info`` the first
zero block. One column or two a step, so slower than LAPACK's blocked code for large matrices.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.rules.linalg_portable import batched
from torch_neuronx.lowering.table import lowers

_GROWTH = (1 + math.sqrt(17)) / 8


def _size(x: Any) -> Any:
    """LAPACK's measure of an element: the sum of the absolute parts."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _item(x: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(x, i, keepdims=False)


def _column(a: Any, j: Any) -> Any:
    return lax.dynamic_index_in_dim(a, j, 1, keepdims=False)


def _exchange(index: Any, p: Any, q: Any) -> Any:
    """``index`` with p and q exchanged."""
    return jnp.where(index == p, q, jnp.where(index == q, p, index))


def _factor_one(a: Any, hermitian: bool) -> tuple[Any, Any, Any]:
    n = a.shape[0]
    index = jnp.arange(n, dtype=np.int32)
    if n == 0:
        return a, jnp.zeros(0, np.int32), jnp.int32(0)

    def mirror(x: Any) -> Any:
        return jnp.conj(x) if hermitian else x

    lower = jnp.tril(a, -1)
    diagonal = jnp.diagonal(a)
    if hermitian and jnp.iscomplexobj(a):
        diagonal = diagonal.real.astype(a.dtype)
    a = lower + mirror(lower.T) + jnp.diag(diagonal)

    def more(state: Any) -> Any:
        return state[0] < n

    def step(state: Any) -> Any:
        k, a, pivots, info = state
        column = _column(a, k)
        absolute = _size(_item(column, k))
        below = jnp.where(index > k, _size(column), -1)
        worst = jnp.argmax(below).astype(np.int32)
        column_max = jnp.maximum(jnp.max(below), 0)
        other = _column(a, worst)
        row_max = jnp.max(jnp.where((index >= k) & (index != worst), _size(other), 0))
        zero = jnp.maximum(absolute, column_max) == 0
        alpha = np.asarray(_GROWTH, absolute.dtype)
        ratio = column_max / jnp.where(row_max > 0, row_max, 1)
        stay = zero | (absolute >= alpha * column_max)
        stay = stay | (absolute >= alpha * column_max * ratio)
        single = stay | (_size(_item(other, worst)) >= alpha * row_max)
        pivot = jnp.where(stay, k, worst)
        place = jnp.where(single, k, k + 1)

        order = _exchange(index, place, pivot)
        rest = (index >= k)[:, None] & (index >= k)[None, :]
        a = jnp.where(rest, a[order][:, order], a)

        first = _column(a, k)
        second = _column(a, jnp.minimum(k + 1, n - 1))
        # One column: L = column / d.
        d = _item(first, k)
        d = jnp.where(d == 0, 1, d)
        below_one = index > k
        one = jnp.where(below_one, first / d, 0)
        update_one = jnp.outer(one, mirror(jnp.where(below_one, first, 0)))
        # Two columns: L = W D^-1 of the block D, scaled by its off-diagonal element.
        below_two = index > k + 1
        off = _item(first, jnp.minimum(k + 1, n - 1))
        off = jnp.where(off == 0, 1, off)
        p = _item(first, k) / mirror(off)
        q = _item(second, jnp.minimum(k + 1, n - 1)) / off
        # D = [[d11, conj(off)], [off, d22]]; p q - 1 = det D / (off conj(off)).
        determinant = p * q - 1
        determinant = jnp.where(determinant == 0, 1, determinant)
        w1, w2 = jnp.where(below_two, first, 0), jnp.where(below_two, second, 0)
        l1 = (q * w1 - w2) / (determinant * mirror(off))
        l2 = (p * w2 - w1) / (determinant * off)
        update_two = jnp.outer(l1, mirror(w1)) + jnp.outer(l2, mirror(w2))

        update = jnp.where(zero, 0, jnp.where(single, update_one, update_two))
        a = a - update.astype(a.dtype)
        if hermitian and jnp.iscomplexobj(a):
            on_diagonal = index[:, None] == index[None, :]
            a = jnp.where(on_diagonal, a.real.astype(a.dtype), a)
        new_first = jnp.where(
            single, jnp.where(below_one, one, first), jnp.where(below_two, l1, first)
        )
        a = jnp.where(zero, a, lax.dynamic_update_index_in_dim(a, new_first.astype(a.dtype), k, 1))
        new_second = jnp.where(below_two, l2, second)
        both = lax.dynamic_update_index_in_dim(
            a, new_second.astype(a.dtype), jnp.minimum(k + 1, n - 1), 1
        )
        a = jnp.where(single, a, both)

        number = jnp.where(single, pivot + 1, -(pivot + 1)).astype(np.int32)
        mine = (index == k) | ((index == k + 1) & ~single)
        pivots = jnp.where(mine, number, pivots)
        info = jnp.where((info == 0) & zero, (k + 1).astype(np.int32), info)
        return k + jnp.where(single, 1, 2).astype(np.int32), a, pivots, info

    start = (jnp.int32(0), a, jnp.zeros(n, np.int32), jnp.int32(0))
    _, a, pivots, info = lax.while_loop(more, step, start)
    return jnp.tril(a), pivots, info


@lowers("aten::linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(
    self: Any, hermitian: bool = False, check_errors: bool = False
) -> tuple[Any, Any, Any]:
    """LD in compact form, int32 pivots and info; raising for info is the caller's part (C++)."""
    return batched(lambda a: _factor_one(a, hermitian), self, ranks=(2,))


def _solve_one(ld: Any, pivots: Any, b: Any, hermitian: bool) -> Any:
    n = ld.shape[0]
    if n == 0 or b.shape[1] == 0:
        return b
    index = jnp.arange(n, dtype=np.int32)

    def mirror(x: Any) -> Any:
        return jnp.conj(x) if hermitian else x

    def row(x: Any, i: Any) -> Any:
        return lax.dynamic_index_in_dim(x, i, 0, keepdims=False)

    def exchanged(x: Any, p: Any, q: Any) -> Any:
        return x[_exchange(index, p, q)]

    def forward(state: Any) -> Any:
        k, x = state
        number = _item(pivots, k)
        single = number > 0
        after = jnp.minimum(k + 1, n - 1)
        x = exchanged(x, jnp.where(single, k, after), jnp.abs(number) - 1)
        first, second = _column(ld, k), _column(ld, after)
        top, next_ = row(x, k), row(x, after)
        one = jnp.outer(jnp.where(index > k, first, 0), top)
        two = jnp.outer(jnp.where(index > k + 1, first, 0), top)
        two = two + jnp.outer(jnp.where(index > k + 1, second, 0), next_)
        x = x - jnp.where(single, one, two)
        d11, d21, d22 = _item(first, k), _item(first, after), _item(second, after)
        off = jnp.where(single, 1, d21)
        p, q = d11 / mirror(off), d22 / off
        determinant = jnp.where(single, 1, p * q - 1)
        u, v = top / mirror(off), next_ / off
        solved = jnp.where(single, top / jnp.where(single, d11, 1), (q * u - v) / determinant)
        x = lax.dynamic_update_index_in_dim(x, solved, k, 0)
        pair = lax.dynamic_update_index_in_dim(x, (p * v - u) / determinant, after, 0)
        x = jnp.where(single, x, pair)
        return k + jnp.where(single, 1, 2).astype(np.int32), x

    def backward(state: Any) -> Any:
        k, x = state
        number = _item(pivots, k)
        single = number > 0
        before = jnp.maximum(k - 1, 0)
        known = jnp.where((index > k)[:, None], x, 0)
        mine = row(x, k) - jnp.sum(mirror(_column(ld, k))[:, None] * known, axis=0)
        theirs = row(x, before) - jnp.sum(mirror(_column(ld, before))[:, None] * known, axis=0)
        x = lax.dynamic_update_index_in_dim(x, mine, k, 0)
        x = jnp.where(single, x, lax.dynamic_update_index_in_dim(x, theirs, before, 0))
        x = exchanged(x, k, jnp.abs(number) - 1)
        return k - jnp.where(single, 1, 2).astype(np.int32), x

    _, x = lax.while_loop(lambda s: s[0] < n, forward, (jnp.int32(0), b))
    return lax.while_loop(lambda s: s[0] >= 0, backward, (jnp.int32(n - 1), x))[1]


@lowers("aten::linalg_ldl_solve")
def linalg_ldl_solve(LD: Any, pivots: Any, B: Any, hermitian: bool = False) -> Any:
    """X with A X = B from the factors of A, over broadcast batches."""
    return batched(lambda ld, p, b: _solve_one(ld, p, b, hermitian), LD, pivots, B, ranks=(2, 1, 2))
