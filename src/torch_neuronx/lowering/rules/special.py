"""Special functions: Bessel, Airy, orthogonal polynomials and the scaled complementary error
function.

Rational and Chebyshev approximations are those of Cephes (``lowering/cephes.py``), evaluated in the
dtype of the computation as PyTorch's CPU kernels do. Branches are selected element by element, so
each one is evaluated everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_neuronx.lowering import cephes
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers

Function = Callable[..., Any]


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    """The polynomial with ``coefficients``, highest power first."""
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + jnp.asarray(c, x.dtype)
    return total


def _chebyshev(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Clenshaw's sum of a Chebyshev series in x / 2, as Cephes' chbevl."""
    b0, b1, b2 = jnp.full_like(x, coefficients[0]), jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[1:]:
        b2, b1 = b1, b0
        b0 = x * b1 - b2 + jnp.asarray(c, x.dtype)
    return (b0 - b2) / 2


def _poles(x: Any, value: Any, at_zero: float) -> Any:
    """``value`` for x > 0, ``at_zero`` at 0, NaN below."""
    below = jnp.where(x == 0, jnp.full_like(x, at_zero), jnp.full_like(x, np.nan))
    return jnp.where(x <= 0, below, value)


# --- Bessel functions --------------------------------------------------------------------------


def _waves(x: Any, order: int) -> tuple[Any, Any]:
    """J and Y of order 0 or 1 above 5, by Hankel's asymptotic form."""
    name = f"BESSEL_J{order}_"
    pp, pq, qp, qq = (getattr(cephes, name + n) for n in ("PP", "PQ", "QP", "QQ"))
    w = 5 / x
    z = w * w
    p = _horner(z, pp) / _horner(z, pq)
    q = w * (_horner(z, qp) / _horner(z, qq))
    turn = x - jnp.asarray((1 + 2 * order) * math.pi / 4, x.dtype)
    scale = jnp.asarray(math.sqrt(2 / math.pi), x.dtype) / jnp.sqrt(x)
    sine, cosine = jnp.sin(turn), jnp.cos(turn)
    return (p * cosine - q * sine) * scale, (p * sine + q * cosine) * scale


def bessel_j0(x: Any) -> Any:
    """Bessel function of the first kind of order 0."""
    x = jnp.abs(x)
    z = x * x
    small = (
        (z - jnp.asarray(5.78318596294678452118, x.dtype))
        * (z - jnp.asarray(30.4712623436620863991, x.dtype))
        * _horner(z, cephes.BESSEL_J0_RP)
        / _horner(z, cephes.BESSEL_J0_RQ)
    )
    tiny = 1 - z / 4
    return jnp.where(x < 1e-5, tiny, jnp.where(x <= 5, small, _waves(x, 0)[0]))


def bessel_j1(x: Any) -> Any:
    """Bessel function of the first kind of order 1."""
    a = jnp.abs(x)
    z = a * a
    small = (
        _horner(z, cephes.BESSEL_J1_RP)
        / _horner(z, cephes.BESSEL_J1_RQ)
        * a
        * (z - jnp.asarray(14.6819706421238932572, x.dtype))
        * (z - jnp.asarray(49.2184563216946036703, x.dtype))
    )
    value = jnp.where(a <= 5, small, _waves(a, 1)[0])
    return jnp.where(x < 0, -value, value)


def bessel_y0(x: Any) -> Any:
    """Bessel function of the second kind of order 0."""
    z = x * x
    ratio = _horner(z, cephes.BESSEL_Y0_YP) / _horner(z, cephes.BESSEL_Y0_YQ)
    small = ratio + jnp.asarray(2 / math.pi, x.dtype) * jnp.log(x) * bessel_j0(x)
    return _poles(x, jnp.where(x <= 5, small, _waves(x, 0)[1]), -np.inf)


def bessel_y1(x: Any) -> Any:
    """Bessel function of the second kind of order 1."""
    z = x * x
    ratio = _horner(z, cephes.BESSEL_Y1_YP) / _horner(z, cephes.BESSEL_Y1_YQ)
    small = x * ratio + jnp.asarray(2 / math.pi, x.dtype) * (bessel_j1(x) * jnp.log(x) - 1 / x)
    return _poles(x, jnp.where(x <= 5, small, _waves(x, 1)[1]), -np.inf)


def _scaled_i(x: Any, order: int) -> Any:
    """exp(-|x|) I(|x|)."""
    a = jnp.abs(x)
    low, high = getattr(cephes, f"BESSEL_I{order}_A"), getattr(cephes, f"BESSEL_I{order}_B")
    small = _chebyshev(a / 2 - 2, low)
    if order == 1:
        small = small * a
    return jnp.where(a <= 8, small, _chebyshev(32 / a - 2, high) / jnp.sqrt(a))


def modified_bessel_i0(x: Any) -> Any:
    """Modified Bessel function of the first kind of order 0."""
    return jnp.exp(jnp.abs(x)) * _scaled_i(x, 0)


def modified_bessel_i1(x: Any) -> Any:
    """Modified Bessel function of the first kind of order 1."""
    value = jnp.exp(jnp.abs(x)) * _scaled_i(x, 1)
    return jnp.where(x < 0, -value, value)


def _k(x: Any, order: int, scaled: bool) -> Any:
    low, high = getattr(cephes, f"BESSEL_K{order}_A"), getattr(cephes, f"BESSEL_K{order}_B")
    series = _chebyshev(x * x - 2, low)
    if order == 0:
        small = series - jnp.log(x / 2) * modified_bessel_i0(x)
    else:
        small = jnp.log(x / 2) * modified_bessel_i1(x) + series / x
    large = _chebyshev(8 / x - 2, high) / jnp.sqrt(x)
    if scaled:
        small = small * jnp.exp(x)
    else:
        large = jnp.exp(-x) * large
    return _poles(x, jnp.where(x <= 2, small, large), np.inf)


def spherical_bessel_j0(x: Any) -> Any:
    """sin(x) / x, by its series near 0."""
    terms = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1))
    series = _horner(x * x, terms)
    value = jnp.where(jnp.abs(x) < 0.5, series, jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), jnp.zeros_like(x), value)


def airy_ai(x: Any) -> Any:
    """Airy function Ai."""
    root_pi = jnp.asarray(1 / math.sqrt(math.pi), x.dtype)
    size = jnp.abs(x)
    root = jnp.sqrt(size)
    power = 2 * size * root / 3
    w = 1 / power
    # Left of -2.09: a wave.
    z = w * w
    u = 1 + z * _horner(z, cephes.AIRY_AI_AFN) / _horner(z, cephes.AIRY_AI_AFD)
    v = w * _horner(z, cephes.AIRY_AI_AGN) / _horner(z, cephes.AIRY_AI_AGD)
    turn = power + jnp.asarray(math.pi / 4, x.dtype)
    left = root_pi / jnp.sqrt(root) * (jnp.sin(turn) * u - jnp.cos(turn) * v)
    # Right of 2.09: a decay.
    ratio = _horner(w, cephes.AIRY_AI_AN) / _horner(w, cephes.AIRY_AI_AD)
    right = root_pi * ratio / (2 * jnp.sqrt(root) * jnp.exp(power))
    right = jnp.where(x > 103.892, jnp.zeros_like(x), right)
    # Between them the Maclaurin series; 14 terms exhaust float64 there.
    cube = x * x * x
    m, n = jnp.ones_like(x), x
    f, g = m, n
    k = 1
    for _ in range(14):
        m = m * cube / ((k + 1) * (k + 2))
        n = n * cube / ((k + 2) * (k + 3))
        f, g = f + m, g + n
        k += 3
    middle = (
        jnp.asarray(0.355028053887817239260, x.dtype) * f
        - jnp.asarray(0.258819403792806798405, x.dtype) * g
    )
    value = jnp.where(x < -2.09, left, jnp.where(x >= 2.09, right, middle))
    return jnp.where(jnp.isinf(x), jnp.full_like(x, np.nan), value)


UNARY: dict[str, Function] = {
    "special_airy_ai": airy_ai,
    "special_bessel_j0": bessel_j0,
    "special_bessel_j1": bessel_j1,
    "special_bessel_y0": bessel_y0,
    "special_bessel_y1": bessel_y1,
    "special_modified_bessel_i0": modified_bessel_i0,
    "special_modified_bessel_i1": modified_bessel_i1,
    "special_modified_bessel_k0": lambda x: _k(x, 0, False),
    "special_modified_bessel_k1": lambda x: _k(x, 1, False),
    "special_scaled_modified_bessel_k0": lambda x: _k(x, 0, True),
    "special_scaled_modified_bessel_k1": lambda x: _k(x, 1, True),
    "special_spherical_bessel_j0": spherical_bessel_j0,
    "special_erfcx": jsp.erfcx,
}


def _register_unary(name: str, function: Function) -> None:
    @lowers(f"aten::{name}")
    def rule(self: Any, *, out: Any) -> Any:
        return function(cast(self, op_math(out.dtype)))


for _name, _function in UNARY.items():
    _register_unary(_name, _function)


# --- orthogonal polynomials --------------------------------------------------------------------


def _recur(x: Any, n: Any, first: Any, step: Function) -> Any:
    """P_n(x) of P_0 = 1, P_1 = ``first`` and P_(j+1) = step(j, x, P_j, P_(j-1)); 0 for n < 0."""

    def more(state: tuple[Any, Any, Any]) -> Any:
        j, _, q = state
        return jnp.any((j < n) & ~jnp.isnan(q))

    def advance(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        j, p, q = state
        go = j < n
        return j + 1, jnp.where(go, q, p), jnp.where(go, step(j, x, q, p), q)

    one = jnp.ones_like(x)
    _, _, value = lax.while_loop(more, advance, (jnp.ones((), x.dtype), one, first))
    return jnp.where(n < 0, jnp.zeros_like(x), jnp.where(n == 0, one, value))


def _chebyshev_step(j: Any, y: Any, q: Any, p: Any) -> Any:
    return (y + y) * q - p


def _sign_of(n: Any) -> Any:
    """1 for even n, -1 for odd n."""
    return jnp.where(lax.rem(n, jnp.full_like(n, 2)) == 0, jnp.ones_like(n), -jnp.ones_like(n))


def _kind(y: Any, n: Any, kind: str, trigonometric_above: int) -> Any:
    """Chebyshev polynomials of the four kinds at y: at the ends exact, by angles inside (-1, 1)
    for large n, else by recurrence."""
    one, half = jnp.ones_like(y), jnp.asarray(0.5, y.dtype)
    angle = jnp.arccos(y)
    sign = _sign_of(n)
    if kind == "t":
        first, right, left = y, one, sign
        inside = jnp.cos(n * angle)
    elif kind == "u":
        first, right, left = y + y, n + 1, sign * (n + 1)
        sine = jnp.sin(angle)
        flat = (n + 1) * jnp.cos((n + 1) * angle) / y
        inside = jnp.where(sine != 0, jnp.sin((n + 1) * angle) / sine, flat)
    elif kind == "v":
        first, right, left = y + y - 1, one, sign * (n + n + 1)
        steep = jnp.sin(angle * half) == 1
        inside = jnp.where(steep, left, jnp.cos((n + half) * angle) / jnp.cos(angle * half))
    else:
        first, right, left = y + y + 1, n + n + 1, sign
        flat = jnp.cos(angle * half) == 1
        end = jnp.where(y > 0, right, left)
        inside = jnp.where(flat, end, jnp.sin((n + half) * angle) / jnp.sin(angle * half))
    ends = jnp.abs(y) == 1
    angles = (n > trigonometric_above) & (jnp.abs(y) < 1)
    # Elements that need no recurrence do not prolong it.
    value = _recur(y, jnp.where(ends | angles, jnp.minimum(n, 0), n), first, _chebyshev_step)
    value = jnp.where(angles, inside, jnp.where(ends, jnp.where(y > 0, right, left), value))
    return jnp.where(n < 0, jnp.zeros_like(y), value)


def _hermite(doubled: bool) -> Function:
    def polynomial(x: Any, n: Any) -> Any:
        limit = 128 if x.dtype == np.float32 else 512  # PyTorch's, above which it gives NaN
        y = x + x if doubled else x
        factor = 2 if doubled else 1
        value = _recur(x, jnp.minimum(n, limit), y, lambda j, _, q, p: y * q - factor * j * p)
        # n = 0 and 1 come before the limit, and n that is no number counts as -1.
        value = jnp.where(n > limit, jnp.full_like(x, np.nan), value)
        return jnp.where(jnp.isfinite(n), value, jnp.zeros_like(x))

    return polynomial


def _laguerre(x: Any, n: Any) -> Any:
    return _recur(x, n, 1 - x, lambda j, x, q, p: ((j + j + (1 - x)) * q - j * p) / (j + 1))


def _legendre(x: Any, n: Any) -> Any:
    ends = jnp.abs(x) == 1
    value = _recur(
        x,
        jnp.where(ends, jnp.minimum(n, 0), n),
        x,
        lambda j, x, q, p: ((j + j + 1) * x * q - j * p) / (j + 1),
    )
    end = jnp.where(x > 0, jnp.ones_like(x), _sign_of(n))
    return jnp.where(ends & (n >= 0), end, value)


def _chebyshev_rule(kind: str, above: int, shifted: bool) -> Function:
    def polynomial(x: Any, n: Any) -> Any:
        return _kind(x + x - 1 if shifted else x, n, kind, above)

    return polynomial


POLYNOMIALS: dict[str, Function] = {
    "hermite_polynomial_h": _hermite(True),
    "hermite_polynomial_he": _hermite(False),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}
for _kind_name, _above, _shifted_above in (("t", 6, 6), ("u", 8, 6), ("v", 8, 6), ("w", 8, 4)):
    POLYNOMIALS[f"chebyshev_polynomial_{_kind_name}"] = _chebyshev_rule(_kind_name, _above, False)
    POLYNOMIALS[f"shifted_chebyshev_polynomial_{_kind_name}"] = _chebyshev_rule(
        _kind_name, _shifted_above, True
    )


def _register_polynomial(name: str, function: Function) -> None:
    @lowers(f"aten::special_{name}")
    def rule(x: Any, n: Any, *, out: Any) -> Any:
        dtype = op_math(out.dtype)
        x, n = jnp.broadcast_arrays(cast(x, dtype), cast(n, dtype))
        return function(x, jnp.trunc(n))


for _name, _function in POLYNOMIALS.items():
    _register_polynomial(_name, _function)
