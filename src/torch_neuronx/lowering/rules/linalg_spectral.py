"""Eigenvalues, singular values and exponentials of matrices, in plain StableHLO.

* Hermitian eigenvalues: cyclic Jacobi rotations in parallel order (Brent and Luk, "The solution of
  singular-value and symmetric eigenvalue problems on multiprocessor arrays", SIAM J. Sci. Stat.
  Comput. 6 (1985)). Signs of eigenvectors are free and differ from LAPACK's.
* Singular values: one-sided Jacobi in the same order, then a QR that makes the left vectors
  orthonormal where singular values vanish.
* Matrix exponential: scaling, Taylor polynomial of degree 18, squaring (Bader, Blanes and Casas,
  "Computing the matrix exponential with an optimized Taylor polynomial approximation",
  Mathematics 7 (2019), for the bounds).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.rules.linalg_portable import (
    apply_reflectors,
    batched,
    geqrf_one,
    hermitian,
    matmul,
)
from torch_neuronx.lowering.table import lowers

# --- Jacobi ------------------------------------------------------------------------------------

_SWEEPS = 30  # convergence is quadratic: ten do for float32, fifteen for float64


def _turn(order: Any) -> Any:
    """The next round of a round-robin tournament of ``order`` (2, pairs): the first stays."""
    top, bottom = order[0], order[1]
    if top.shape[0] == 1:
        return order
    new_top = jnp.concatenate([top[:1], bottom[:1], top[1:-1]])
    new_bottom = jnp.concatenate([bottom[1:], top[-1:]])
    return jnp.stack([new_top, new_bottom])


def _rotation(alpha: Any, beta: Any, gamma: Any) -> tuple[Any, Any]:
    """Cosine and (complex) sine that diagonalise [[alpha, gamma], [conj gamma, beta]].

    Columns p, q become c p - conj(s) q and s p + c q.
    """
    size = jnp.abs(gamma)
    tiny = np.finfo(alpha.dtype).tiny
    safe = jnp.where(size > tiny, size, jnp.ones_like(size))
    tau = (beta - alpha) / (2 * safe)
    t = jnp.where(tau >= 0, 1, -1) / (jnp.abs(tau) + jnp.sqrt(1 + tau * tau))
    c = 1 / jnp.sqrt(1 + t * t)
    s = (t * c).astype(gamma.dtype) * (gamma / safe.astype(gamma.dtype))
    still = size <= tiny
    return jnp.where(still, jnp.ones_like(c), c), jnp.where(still, jnp.zeros_like(s), s)


def _rotate_columns(x: Any, order: Any, c: Any, s: Any) -> Any:
    p, q = x[:, order[0]], x[:, order[1]]
    c = c.astype(x.dtype)
    x = x.at[:, order[0]].set(c * p - jnp.conj(s) * q, unique_indices=True)
    return x.at[:, order[1]].set(s * p + c * q, unique_indices=True)


def _sweeps(
    n: int, state: Any, rotate: Callable[[Any, Any], Any], off: Callable[[Any], Any]
) -> Any:
    """Sweeps of ``rotate(order, state)`` over all pairs of n (even) columns until ``off(state)``
    says that nothing is left to turn."""
    order = jnp.arange(n, dtype=np.int32).reshape(n // 2, 2).T

    def round_(_: Any, carry: Any) -> Any:
        order, state = carry
        return _turn(order), rotate(order, state)

    def sweep(carry: Any) -> Any:
        count, order, state = carry
        order, state = lax.fori_loop(0, n - 1, round_, (order, state))
        return count + 1, order, state

    def more(carry: Any) -> Any:
        return (carry[0] < _SWEEPS) & off(carry[2])

    return lax.while_loop(more, sweep, (jnp.int32(0), order, state))[2]


def _eigh_one(a: Any, vectors: bool) -> tuple[Any, Any]:
    """Ascending eigenvalues and vectors of a Hermitian matrix given by its lower triangle."""
    n = a.shape[0]
    real = a.real.dtype
    if n == 0:
        return jnp.zeros(0, real), a
    lower = jnp.tril(a, -1)
    a = lower + jnp.conj(lower.T) + jnp.diag(jnp.diagonal(a).real.astype(a.dtype))
    even = n + n % 2
    # The padding's row and column are zero, so no rotation touches them.
    a = jnp.pad(a, ((0, even - n), (0, even - n)))
    v = jnp.eye(even, dtype=a.dtype)
    if n > 1:

        def rotate(order: Any, state: Any) -> Any:
            x, v = state
            p, q = order[0], order[1]
            c, s = _rotation(x[p, p].real, x[q, q].real, x[p, q])
            x = _rotate_columns(x, order, c, s)
            x = jnp.conj(_rotate_columns(jnp.conj(x.T), order, c, s).T)
            # What a rotation makes zero is zero.
            x = x.at[p, q].set(0).at[q, p].set(0)
            return x, _rotate_columns(v, order, c, s) if vectors else v

        def off(state: Any) -> Any:
            x = state[0]
            size = jnp.max(jnp.abs(x))
            rest = jnp.max(jnp.abs(jnp.where(jnp.eye(even, dtype=bool), jnp.zeros_like(x), x)))
            return rest > size * (np.finfo(real).eps / 8)

        a, v = _sweeps(even, (a, v), rotate, off)
    values = jnp.diagonal(a).real[:n]
    order = jnp.argsort(values)
    return values[order], v[:n, :n][:, order]


@lowers("aten::_linalg_eigh")
def linalg_eigh(A: Any, UPLO: str = "L", compute_v: bool = True, *, out: Any) -> tuple[Any, Any]:
    """Eigenvalues, ascending, and eigenvectors of Hermitian matrices."""
    lower = A if UPLO.upper() == "L" else hermitian(A)
    values, vectors = batched(lambda a: _eigh_one(a, compute_v), lower, ranks=(2,))
    return values, vectors if compute_v else jnp.zeros(out[1].shape, A.dtype)


def _svd_one(a: Any, full: bool, vectors: bool) -> tuple[Any, Any, Any]:
    """U, S, V^H of one matrix with at least as many rows as columns."""
    m, n = a.shape
    real = a.real.dtype
    if n == 0:
        k = m if full else 0
        return jnp.eye(m, k, dtype=a.dtype), jnp.zeros(0, real), jnp.zeros((0, 0), a.dtype)
    # R of a QR first: rotations then cost n rows, and scaling keeps squares in range.
    scale = jnp.max(jnp.abs(a))
    scale = jnp.where((scale > 0) & jnp.isfinite(scale), scale, jnp.ones_like(scale))
    packed, taus = geqrf_one(a / scale.astype(a.dtype))
    r = jnp.triu(packed[:n])
    even = n + n % 2
    x = jnp.pad(r, ((0, 0), (0, even - n)))
    v = jnp.eye(even, dtype=a.dtype)

    def grams(x: Any, order: Any) -> tuple[Any, Any, Any]:
        p, q = x[:, order[0]], x[:, order[1]]
        return (
            jnp.sum(jnp.square(jnp.abs(p)), 0),
            jnp.sum(jnp.square(jnp.abs(q)), 0),
            jnp.sum(jnp.conj(p) * q, 0),
        )

    def rotate(order: Any, state: Any) -> Any:
        x, v, worst = state
        alpha, beta, gamma = grams(x, order)
        size = jnp.sqrt(alpha * beta)
        cosine = jnp.abs(gamma) / jnp.where(size > 0, size, jnp.ones_like(size))
        worst = jnp.maximum(worst, jnp.max(jnp.where(size > 0, cosine, jnp.zeros_like(cosine))))
        c, s = _rotation(alpha, beta, gamma)
        return _rotate_columns(x, order, c, s), _rotate_columns(v, order, c, s), worst

    bound = np.finfo(real).eps * max(math.sqrt(n), 4)
    order = jnp.arange(even, dtype=np.int32).reshape(even // 2, 2).T

    def sweep(carry: Any) -> Any:
        count, order, (x, v, _) = carry

        def round_(_: Any, inner: Any) -> Any:
            order, state = inner
            return _turn(order), rotate(order, state)

        start = (order, (x, v, jnp.zeros((), real)))
        order, state = lax.fori_loop(0, even - 1, round_, start)
        return count + 1, order, state

    def more(carry: Any) -> Any:
        return (carry[0] < _SWEEPS) & (carry[2][2] > bound)

    first = (jnp.int32(0), order, (x, v, jnp.full((), np.inf, real)))
    x, v, _ = lax.while_loop(more, sweep, first)[2]
    x, v = x[:, :n], v[:n, :n]
    values = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x)), 0))
    by_size = jnp.argsort(-values)
    values = values[by_size]
    singular = values * scale
    if not vectors:
        return jnp.zeros(0, a.dtype), singular, jnp.zeros(0, a.dtype)
    x, v = x[:, by_size], v[:, by_size]
    # The columns are orthogonal: QR normalises them, and completes those that are zero.
    packed_x, taus_x = geqrf_one(x)
    q = apply_reflectors(packed_x, taus_x, jnp.eye(n, dtype=a.dtype), False)
    head = jnp.diagonal(packed_x)
    size = jnp.abs(head)
    phase = jnp.where(size > 0, head / jnp.where(size > 0, size, 1).astype(a.dtype), 1)
    q = q * phase[None, :].astype(a.dtype)
    k = m if full else n
    left = jnp.eye(m, k, dtype=a.dtype).at[:n, :n].set(q)
    u = apply_reflectors(packed, taus, left, False)
    return u, singular, jnp.conj(v.T)


@lowers("aten::_linalg_svd")
def linalg_svd(
    A: Any,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,
    *,
    out: Any,
    checks: Checks,
) -> tuple[Any, Any, Any]:
    """U, S (descending) and V^H."""
    finite = jnp.all(jnp.isfinite(A), axis=(-2, -1)).reshape(-1)
    element = "(Batch element {value}): " if A.ndim > 2 else ""
    checks.require(
        finite,
        jnp.arange(finite.size, dtype=np.int64),
        "LinAlgError",
        f"linalg.svd: {element}The algorithm failed to converge because the input matrix "
        "contained non-finite values.",
    )
    wide = A.shape[-2] < A.shape[-1]
    u, s, vh = batched(
        lambda a: _svd_one(a, full_matrices, compute_uv), hermitian(A) if wide else A, ranks=(2,)
    )
    if not compute_uv:
        return jnp.zeros(out[0].shape, A.dtype), s, jnp.zeros(out[2].shape, A.dtype)
    return (hermitian(vh), s, hermitian(u)) if wide else (u, s, vh)


# --- matrix exponential ------------------------------------------------------------------------

# Largest one-norm for which the Taylor polynomial of degree 18 is exact to the dtype.
_REACH = {"float32": 3.01, "float64": 1.09}


@lowers("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: Any) -> Any:
    """exp of square matrices."""
    n = self.shape[-1]
    if self.size == 0:
        return self
    if n == 1:
        return jnp.exp(self)
    given = dtype_name(self)
    self = cast(self, op_math(given))
    real = dtype_name(self.real)
    norm = jnp.max(jnp.sum(jnp.abs(self), axis=-2), axis=-1)
    ratio = jnp.where(jnp.isfinite(norm), norm / _REACH[real], 1)
    squarings = jnp.maximum(jnp.ceil(jnp.log2(jnp.maximum(ratio, 1))), 0)
    a = self * jnp.exp2(-squarings).astype(self.dtype)[..., None, None]
    eye = jnp.eye(n, dtype=self.dtype)
    # Paterson and Stockmeyer: three blocks of powers up to six.
    powers = [jnp.broadcast_to(eye, a.shape), a]
    for i in range(2, 7):
        powers.append(matmul(powers[i // 2], powers[i - i // 2]))
    total = powers[6] / math.factorial(18)
    for block in (2, 1, 0):
        for i in range(6):
            total = total + powers[i] / math.factorial(6 * block + i)
        if block:
            total = matmul(total, powers[6])

    def square(state: tuple[Any, Any]) -> tuple[Any, Any]:
        left, x = state
        return left - 1, jnp.where((left > 0)[..., None, None], matmul(x, x), x)

    result = lax.while_loop(lambda s: jnp.any(s[0] > 0), square, (squarings, total))[1]
    return cast(jnp.where(jnp.isfinite(norm)[..., None, None], result, jnp.nan), given)
