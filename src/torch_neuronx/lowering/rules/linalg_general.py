"""Eigenvalues and eigenvectors of general matrices, in plain StableHLO.

Reduction to Hessenberg form by reflectors; then the QR iteration: Francis' implicit double shift
for real matrices, so that complex eigenvalues come in exact pairs, Wilkinson's single shift for
complex ones (Golub and Van Loan, "Matrix Computations", 4th ed., 7.4 and 7.5); then the vectors by
substitution in the complex triangular form. As LAPACK's geev does, vectors have length one and
their largest component is real, and of a pair the eigenvalue with positive imaginary part comes
first. Where LAPACK balances the matrix first, here only its largest element is scaled to one.
Each loop step touches a few rows and columns, so large matrices are slower than LAPACK's blocked
code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.rules.linalg_portable import batched, matmul
from torch_neuronx.lowering.table import lowers

_FINITE = "{name}: input tensor should not contain infs or NaNs."
_CONVERGED = (
    "{name}: The algorithm failed to converge because the input matrix is ill-conditioned or has "
    "too many repeated eigenvalues."
)


def _at(a: Any, i: Any, j: Any) -> Any:
    """a[i, j] of traced, non-negative indices."""
    return lax.dynamic_slice(a, (i, j), (1, 1))[0, 0]


def _hessenberg(a: Any) -> tuple[Any, Any]:
    """H and unitary Q with A = Q H Q^H, H zero below its first subdiagonal."""
    n = a.shape[0]
    rows = jnp.arange(n, dtype=np.int32)
    eye = jnp.eye(n, dtype=a.dtype)

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        h, q = state
        x = jnp.where(rows > k, lax.dynamic_index_in_dim(h, k, 1, keepdims=False), 0)
        head = jnp.where(rows == k + 1, x, 0).sum()
        size = jnp.sqrt(jnp.sum(jnp.abs(x) ** 2))
        unit = jnp.where(head == 0, 1, head / jnp.where(head == 0, 1, jnp.abs(head)))
        v = x + jnp.where(rows == k + 1, unit * size, 0).astype(a.dtype)
        length = jnp.sum(jnp.abs(v) ** 2)
        beta = jnp.where(length > 0, 2 / jnp.where(length > 0, length, 1), 0).astype(a.dtype)
        below = rows[:, None] > k + 1
        h = h - beta * jnp.outer(v, matmul(jnp.conj(v), h))
        h = jnp.where(below & (rows[None, :] == k), jnp.zeros_like(h), h)
        h = h - beta * jnp.outer(matmul(h, v), jnp.conj(v))
        q = q - beta * jnp.outer(matmul(q, v), jnp.conj(v))
        return h, q

    return lax.fori_loop(0, max(n - 2, 0), step, (a, eye))


def _deflated(h: Any, hi: Any) -> tuple[Any, Any]:
    """H with its negligible subdiagonal elements zero, and the top row of the block that ends at
    ``hi``. H may be padded."""
    n = h.shape[0]
    index = jnp.arange(n, dtype=np.int32)
    diagonal = jnp.abs(jnp.diagonal(h))
    below = jnp.abs(jnp.diagonal(h, -1))
    near = diagonal[:-1] + diagonal[1:]
    eps = np.finfo(below.dtype).eps
    small = below <= eps * jnp.where(near == 0, jnp.max(diagonal), near)
    small = jnp.concatenate([jnp.ones(1, bool), small])  # row i: is h[i, i - 1] negligible?
    on_subdiagonal = index[:, None] == index[None, :] + 1
    h = jnp.where(on_subdiagonal & small[:, None], jnp.zeros_like(h), h)
    return h, jnp.max(jnp.where(small & (index <= hi), index, 0))


def _transform(h: Any, q: Any, reflect: Any, k: Any) -> tuple[Any, Any]:
    """P H P^H and Q P^H for a unitary P (m, m) at rows k to k + m."""
    m = reflect.shape[0]
    rows = matmul(reflect, lax.dynamic_slice_in_dim(h, k, m, 0))
    h = lax.dynamic_update_slice_in_dim(h, rows, k, 0)
    back = jnp.conj(reflect.T)
    columns = matmul(lax.dynamic_slice_in_dim(h, k, m, 1), back)
    h = lax.dynamic_update_slice_in_dim(h, columns, k, 1)
    columns = matmul(lax.dynamic_slice_in_dim(q, k, m, 1), back)
    return h, lax.dynamic_update_slice_in_dim(q, columns, k, 1)


def _cleared(h: Any, k: Any, first: Any, count: int) -> Any:
    """H with rows k + 1 to k + count of column k - 1 zero, unless this is the ``first`` step."""
    rows, columns = jnp.arange(h.shape[0])[:, None], jnp.arange(h.shape[0])[None, :]
    gone = (columns == k - 1) & (rows > k) & (rows <= k + count) & ~first
    return jnp.where(gone, jnp.zeros_like(h), h)


def _schur(
    h: Any,
    q: Any,
    width: int,
    start: Callable[[Any, Any, Any, Any], Any],
    transform: Callable[[Any, Any, Any], Any],
) -> tuple[Any, Any, Any]:
    """(Quasi-)triangular T and Q from a Hessenberg matrix, and whether it converged.

    A step turns ``width`` rows, and blocks of fewer are finished. ``start(h, lo, hi, stalled)`` is
    the first column of the shifted block, exceptionally so after each ten ``stalled`` sweeps;
    ``transform(u, k, hi)`` the unitary matrix that makes a multiple of a unit vector of ``u``.
    """
    n, beyond = h.shape[0], width - 1
    # The last step's rows reach past the end.
    h, q = jnp.pad(h, ((0, beyond), (0, beyond))), jnp.pad(q, ((0, 0), (0, beyond)))

    def sweep(h: Any, q: Any, lo: Any, hi: Any, stalled: Any) -> tuple[Any, Any]:
        first = start(h, lo, hi, stalled)

        def step(state: Any) -> Any:
            k, h, q = state
            column = lax.dynamic_slice(h, (k, jnp.maximum(k - 1, 0)), (width, 1))[:, 0]
            u = jnp.where(k == lo, first, column)
            h, q = _transform(h, q, transform(u, k, hi), k)
            return k + 1, _cleared(h, k, k == lo, beyond), q

        _, h, q = lax.while_loop(lambda state: state[0] < hi, step, (lo, h, q))
        return h, q

    def more(state: Any) -> Any:
        _, _, hi, _, total = state
        return (hi > 0) & (total < 30 * max(10, n))  # LAPACK's bound

    def iterate(state: Any) -> Any:
        h, q, hi, stalled, total = state
        h, lo = _deflated(h, hi)
        done = lo > hi - beyond
        # A finished block makes an empty sweep.
        h, q = sweep(h, q, jnp.where(done, hi, lo), hi, stalled)
        return (
            h,
            q,
            jnp.where(done, lo - 1, hi),
            jnp.where(done, 0, stalled + 1),
            jnp.where(done, total, total + 1),
        )

    zero = jnp.int32(0)
    h, q, hi, _, _ = lax.while_loop(more, iterate, (h, q, jnp.int32(n - 1), zero, zero))
    return h[:n, :n], q[:, :n], hi <= 0


def _exceptional(stalled: Any) -> Any:
    return (stalled > 0) & (stalled % 10 == 0)


def _double_shift(h: Any, lo: Any, hi: Any, stalled: Any) -> Any:
    """Francis' first column: of the product of both shifted matrices, in real numbers."""
    a, b = _at(h, hi - 1, hi - 1), _at(h, hi - 1, hi)
    c, d = _at(h, hi, hi - 1), _at(h, hi, hi)
    strange = jnp.abs(c) + jnp.abs(_at(h, hi - 1, jnp.maximum(hi - 2, 0)))
    exceptional = _exceptional(stalled)
    trace = jnp.where(exceptional, 1.5 * strange, a + d)
    determinant = jnp.where(exceptional, strange * strange, a * d - b * c)
    p, r, s = _at(h, lo, lo), _at(h, lo, lo + 1), _at(h, lo + 1, lo)
    corner = _at(h, lo + 1, lo + 1)
    return jnp.stack(
        [
            p * p + r * s - trace * p + determinant,
            s * (p + corner - trace),
            s * _at(h, lo + 2, lo + 1),
        ]
    )


def _reflection(u: Any, k: Any, hi: Any) -> Any:
    """Real (3, 3) reflection of ``u``, whose third component lies past the end at the last step."""
    u = jnp.where((jnp.arange(3) == 2) & (k + 2 > hi), 0, u)
    top = jnp.max(jnp.abs(u))
    u = u / jnp.where(top > 0, top, 1)
    size = jnp.sqrt(jnp.sum(u * u))
    v = u.at[0].add(jnp.where(u[0] < 0, -size, size))
    length = jnp.sum(v * v)
    beta = jnp.where(length > 0, 2 / jnp.where(length > 0, length, 1), 0).astype(u.dtype)
    return jnp.eye(3, dtype=u.dtype) - beta * jnp.outer(v, v)


def _single_shift(h: Any, lo: Any, hi: Any, stalled: Any) -> Any:
    """First column with Wilkinson's shift: the last block's eigenvalue nearer its corner."""
    above = jnp.maximum(hi - 1, 0)
    a, b = _at(h, above, above), _at(h, above, hi)
    c, d = _at(h, hi, above), _at(h, hi, hi)
    half = (a - d) / 2
    root = jnp.sqrt(half * half + b * c)
    root = jnp.where((jnp.conj(half) * root).real < 0, -root, root)
    far = half + root
    shift = d - jnp.where(far == 0, 0, b * c / jnp.where(far == 0, 1, far))
    shift = jnp.where(_exceptional(stalled), d + 0.75 * jnp.abs(c), shift)
    return jnp.stack([_at(h, lo, lo) - shift, _at(h, lo + 1, lo)])


def _rotation(x: Any, y: Any) -> Any:
    """Unitary (2, 2) that turns (x, y) into (r, 0)."""
    size = jnp.sqrt(jnp.abs(x) ** 2 + jnp.abs(y) ** 2)
    safe = jnp.where(size > 0, size, 1)
    c = jnp.where(size > 0, x / safe, 1)
    s = jnp.where(size > 0, y / safe, 0)
    return jnp.stack([jnp.stack([jnp.conj(c), jnp.conj(s)]), jnp.stack([-s, c])])


def _eigenvalues_of_blocks(t: Any) -> Any:
    """Complex eigenvalues of a real quasi-triangular matrix, in the order of its diagonal."""
    n = t.shape[0]
    diagonal = jnp.diagonal(t)
    below = jnp.concatenate([jnp.diagonal(t, -1), jnp.zeros(1, t.dtype)])
    above = jnp.concatenate([jnp.diagonal(t, 1), jnp.zeros(1, t.dtype)])
    after = jnp.concatenate([diagonal[1:], jnp.zeros(1, t.dtype)])
    half = (diagonal - after) / 2
    inside = half * half + above * below
    root = jnp.sqrt(jnp.abs(inside))
    far = half + jnp.where(half < 0, -root, root)
    near = above * below / jnp.where(far == 0, 1, far)
    real = inside >= 0
    middle = (diagonal + after) / 2
    zero = jnp.zeros_like(root)
    first = lax.complex(jnp.where(real, after + far, middle), jnp.where(real, zero, root))
    second = lax.complex(jnp.where(real, after - near, middle), jnp.where(real, zero, -root))
    starts = below != 0
    ends = jnp.concatenate([jnp.zeros(1, bool), starts[: n - 1]])
    single = lax.complex(diagonal, zero)
    last = jnp.concatenate([second[:1], second[: n - 1]])
    return jnp.where(starts, first, jnp.where(ends, last, single))


def _triangular(t: Any, q: Any, values: Any) -> tuple[Any, Any]:
    """The complex triangular form of a real quasi-triangular one: a rotation for each block."""
    n = t.shape[0]
    below = jnp.concatenate([jnp.diagonal(t, -1), jnp.zeros(1, t.dtype)])
    t, q = t.astype(values.dtype), q.astype(values.dtype)

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        t, q = state
        c = lax.dynamic_index_in_dim(below, k, keepdims=False)
        value = lax.dynamic_index_in_dim(values, k, keepdims=False)
        turn = _rotation(value - _at(t, k + 1, k + 1), c.astype(t.dtype))
        turn = jnp.where(c != 0, turn, jnp.eye(2, dtype=t.dtype))
        return _transform(t, q, turn, k)

    if n > 1:
        t, q = lax.fori_loop(0, n - 1, step, (t, q))
    return jnp.triu(t), q


def _vectors(t: Any, q: Any, values: Any) -> Any:
    """Unit eigenvectors, as columns, of Q T Q^H for a triangular T with diagonal ``values``."""
    n = t.shape[0]
    index = jnp.arange(n, dtype=np.int32)
    real = np.finfo(t.dtype).dtype
    floor = np.finfo(real).eps * jnp.maximum(jnp.max(jnp.abs(t)), np.finfo(real).tiny / 1e-7)
    large = np.asarray(1e10, real)

    def step(i: Any, x: Any) -> Any:
        k = n - 1 - i
        row = jnp.where(index > k, lax.dynamic_index_in_dim(t, k, 0, keepdims=False), 0)
        gap = lax.dynamic_index_in_dim(values, k, keepdims=False) - values
        gap = jnp.where(jnp.abs(gap) < floor, floor.astype(t.dtype), gap)
        new = jnp.where(index > k, -matmul(row, x) / gap, jnp.where(index == k, 1, 0))
        size = jnp.abs(new)
        scale = jnp.where(size > large, 1 / jnp.where(size > 0, size, 1), 1).astype(t.dtype)
        x = x * scale
        return lax.dynamic_update_index_in_dim(x, new * scale, k, 0)

    x = matmul(q, lax.fori_loop(0, n, step, jnp.zeros_like(t)))
    x = x / jnp.max(jnp.abs(x), axis=0).astype(x.dtype)
    x = x / jnp.sqrt(jnp.sum(jnp.abs(x) ** 2, axis=0)).astype(x.dtype)
    largest = jnp.take_along_axis(x, jnp.argmax(jnp.abs(x), axis=0)[None, :], axis=0)
    return x * (jnp.conj(largest) / jnp.abs(largest))


def _eigen_one(a: Any, vectors: bool) -> tuple[Any, Any, Any]:
    n = a.shape[0]
    is_real = not jnp.issubdtype(a.dtype, jnp.complexfloating)
    complex_dtype = jnp.result_type(a.dtype, np.complex64)
    if n == 0:
        return jnp.zeros(0, complex_dtype), a.astype(complex_dtype), jnp.bool_(True)
    scale = jnp.max(jnp.abs(a))
    scale = jnp.where((scale > 0) & jnp.isfinite(scale), scale, 1)
    h, q = _hessenberg(a / scale.astype(a.dtype))
    if is_real:
        t, q, converged = _schur(h, q, 3, _double_shift, _reflection)
        values = _eigenvalues_of_blocks(t)
        if vectors:
            t, q = _triangular(t, q, values)
    else:
        t, q, converged = _schur(h, q, 2, _single_shift, lambda u, *_: _rotation(u[0], u[1]))
        values = jnp.diagonal(t)
    found = _vectors(t, q, values) if vectors else q.astype(complex_dtype)
    if is_real and vectors:
        # The vectors of a pair are each other's conjugates, those of real values are real.
        before = jnp.concatenate([found[:, :1], found[:, :-1]], axis=1)
        found = jnp.where(values.imag < 0, jnp.conj(before), found)
        plain = lax.complex(found.real, jnp.zeros_like(found.real))
        found = jnp.where(values.imag == 0, plain, found)
    return values * scale.astype(complex_dtype), found, converged


def _eigen(self: Any, checks: Checks, name: str, vectors: bool) -> tuple[Any, Any]:
    finite = jnp.all(jnp.isfinite(self), axis=(-2, -1))
    checks.require(finite, 0, "RuntimeError", _FINITE.format(name=name))
    values, found, converged = batched(lambda a: _eigen_one(a, vectors), self, ranks=(2,))
    checks.require(converged | ~finite, 0, "LinAlgError", _CONVERGED.format(name=name))
    return values, found


@lowers("aten::linalg_eig")
def linalg_eig(self: Any, *, checks: Checks) -> tuple[Any, Any]:
    """Complex eigenvalues (*, n) and unit eigenvectors as columns (*, n, n)."""
    return _eigen(self, checks, "torch.linalg.eig", True)


@lowers("aten::_linalg_eigvals")
def linalg_eigvals(self: Any, *, checks: Checks) -> Any:
    """Complex eigenvalues (*, n)."""
    return _eigen(self, checks, "torch.linalg.eigvals", False)[0]
