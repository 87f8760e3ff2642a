"""Element-wise functions of one operand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import alone, cast, dtype_name, is_complex, is_integer, op_math
from torch_neuronx.lowering.table import lowers


def _atan(x: Any) -> Any:
    if is_complex(dtype_name(x)):
        return _on_cut(lax.atan, lambda z: z.real, lambda z: z.imag)(x)
    return lax.atan2(x, alone(jnp.ones_like(x)))


def _on_cut(
    function: Callable[[Any], Any],
    real: Callable[[Any], Any] | None,
    imag: Callable[[Any], Any] | None,
) -> Callable[[Any], Any]:
    """``function`` whose parts have the sign of ``real`` and ``imag`` of a complex argument.

    On a branch cut the sign of a zero says from which side the argument comes (C99, annex G); XLA's
    formulas lose it.
    """

    def signed(x: Any, sign: Callable[[Any], Any] | None, z: Any) -> Any:
        return x if sign is None else jnp.where(jnp.isnan(x), x, jnp.copysign(x, sign(z)))

    def rule(z: Any) -> Any:
        result = function(z)
        if not is_complex(dtype_name(z)):
            return result
        return lax.complex(signed(result.real, real, z), signed(result.imag, imag, z))

    return rule


def _log_of(base: float) -> Callable[..., Any]:
    def rule(x: Any) -> Any:
        y, factor = lax.log(x), 1 / math.log(base)
        if is_complex(dtype_name(x)):  # by parts: the logarithm of zero is infinite in one of them
            return lax.complex(y.real * factor, y.imag * factor)
        return y * jnp.asarray(factor, x.dtype)

    return rule


def _sinc(x: Any) -> Any:
    y = x * jnp.asarray(math.pi, x.dtype)
    return jnp.where(x == 0, jnp.ones_like(x), lax.sin(y) / y)


def _entr(x: Any) -> Any:
    positive = -x * lax.log(x)
    below = jnp.where(x == 0, jnp.zeros_like(x), jnp.full_like(x, -np.inf))
    return jnp.where(jnp.isnan(x), x, jnp.where(x > 0, positive, below))


def _lgamma(x: Any) -> Any:
    return jnp.where(jnp.isinf(x), jnp.full_like(x, np.inf), lax.lgamma(x))


def _digamma(x: Any) -> Any:
    """lax.digamma with the pole's sign at zero."""
    pole = jnp.where(jnp.signbit(x), jnp.full_like(x, np.inf), jnp.full_like(x, -np.inf))
    return jnp.where(x == 0, pole, lax.digamma(x))


# Functions in the dtype of the computation: float32 for the reduced floats and the integers.
FLOAT: dict[str, Callable[..., Any]] = {
    "sqrt": _on_cut(lax.sqrt, None, lambda z: z.imag),
    "rsqrt": lax.rsqrt,
    "reciprocal": lambda x: 1 / x,
    "exp": lax.exp,
    "exp2": lax.exp2,
    "expm1": lax.expm1,
    "log": lax.log,
    "log2": _log_of(2),
    "log10": _log_of(10),
    "log1p": lax.log1p,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "asin": _on_cut(lax.asin, lambda z: z.real, lambda z: z.imag),
    "acos": _on_cut(lax.acos, None, lambda z: -z.imag),
    "atan": _atan,
    "sinh": lax.sinh,
    "cosh": lax.cosh,
    "tanh": lax.tanh,
    "asinh": _on_cut(lax.asinh, lambda z: z.real, lambda z: z.imag),
    "acosh": _on_cut(lax.acosh, None, lambda z: z.imag),
    "atanh": _on_cut(lax.atanh, lambda z: z.real, lambda z: z.imag),
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "lgamma": _lgamma,
    "digamma": _digamma,
    "sigmoid": lax.logistic,
    "sinc": _sinc,
    "i0": jsp.i0,
    "special_i0e": jsp.i0e,
    "special_i1": jsp.i1,
    "special_i1e": jsp.i1e,
    "special_entr": _entr,
    "special_ndtri": jsp.ndtri,
    "special_log_ndtr": jsp.log_ndtr,
    "deg2rad": lambda x: x * jnp.asarray(math.pi / 180, x.dtype),
    "rad2deg": lambda x: x * jnp.asarray(180 / math.pi, x.dtype),
}


def _register_float(name: str, function: Callable[..., Any]) -> None:
    @lowers(f"aten::{name}")
    def rule(self: Any, *, out: Any) -> Any:
        return function(cast(self, op_math(out.dtype)))


for _name, _function in FLOAT.items():
    _register_float(_name, _function)


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Rounding functions leave integers alone."""
    return lambda x: function(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def trunc(x: Any) -> Any:
    """Towards zero; floats only. Keeps the sign of zero."""
    return jnp.where(jnp.signbit(x), lax.ceil(x), lax.floor(x))


def _sign(x: Any) -> Any:
    if x.dtype == np.bool_:
        return x
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def _abs(x: Any) -> Any:
    return x if x.dtype == np.bool_ or x.dtype.kind == "u" else lax.abs(x)


# Exact in the operand's own dtype.
EXACT: dict[str, Callable[..., Any]] = {
    "neg": lax.neg,
    "_neg_view": lax.neg,
    "_neg_view_copy": lax.neg,
    "sign": _sign,
    "ceil": _whole(lax.ceil),
    "floor": _whole(lax.floor),
    "trunc": _whole(trunc),
    "round": _whole(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
    "frac": lambda x: x - trunc(x),
    "isnan": lambda x: x != x,
    "isinf": lambda x: jnp.isinf(x),
    "isposinf": lambda x: x == np.inf if x.dtype.kind not in "biu" else jnp.zeros(x.shape, bool),
    "isneginf": lambda x: x == -np.inf if x.dtype.kind not in "biu" else jnp.zeros(x.shape, bool),
    "signbit": lambda x: jnp.signbit(x) if x.dtype.kind not in "biu" else x < 0,
    "bitwise_not": lax.bitwise_not,
    "logical_not": lambda x: x == 0,
}


def _register_exact(name: str, function: Callable[..., Any]) -> None:
    @lowers(f"aten::{name}", exact=True)
    def rule(self: Any) -> Any:
        return function(self)


for _name, _function in EXACT.items():
    _register_exact(_name, _function)


@lowers("aten::abs", exact=True)
def absolute(self: Any) -> Any:
    """Magnitude; real for complex operands."""
    return _abs(self)


@lowers("aten::sgn")
def sgn(self: Any, *, out: Any) -> Any:
    """Sign; x / |x| for complex operands."""
    if not is_complex(out.dtype):
        return _sign(self)
    size = lax.abs(self)
    unit = self / jnp.where(size == 0, jnp.ones_like(size), size).astype(self.dtype)
    return jnp.where(size == 0, jnp.zeros_like(self), unit)


@lowers("aten::round.decimals")
def round_decimals(self: Any, decimals: int, *, out: Any) -> Any:
    """Half to even at ``decimals`` places."""
    if is_integer(out.dtype):
        return self
    x = cast(self, op_math(out.dtype))
    ten = jnp.asarray(10.0 ** abs(decimals), x.dtype)
    if decimals >= 0:
        return lax.round(x * ten, lax.RoundingMethod.TO_NEAREST_EVEN) / ten
    return lax.round(x / ten, lax.RoundingMethod.TO_NEAREST_EVEN) * ten


@lowers("aten::logit")
def logit(self: Any, eps: Any, *, out: Any) -> Any:
    """log(x / (1 - x)) of x clamped to [eps, 1 - eps]."""
    x = cast(self, op_math(out.dtype))
    if eps is not None:
        low = cast(eps, op_math(out.dtype))
        x = jnp.where(x < low, low, jnp.where(x > 1 - low, 1 - low, x))
    return lax.log(x / (1 - x))


# (2k)! / B2k for k = 1, 2, ...: the denominators of the Euler-Maclaurin tail.
_TAIL = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1.8924375803183791606e9,
    7.47242496e10,
    -2.950130727918164224e12,
    1.1646782814350067249e14,
    -4.5979787224074726105e15,
    1.8152105401943546773e17,
    -7.1661652561756670113e18,
)


def hurwitz_zeta(x: Any, q: Any) -> Any:
    """Hurwitz zeta by Euler-Maclaurin summation, negative ``q`` included (as Cephes does)."""

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, total, count = state
        more = (count < 9) | (a <= 9)
        a = jnp.where(more, a + 1, a)
        return a, jnp.where(more, total + lax.pow(a, -x), total), count + 1

    def unfinished(state: tuple[Any, Any, Any]) -> Any:
        return (state[2] < 9) | (jnp.any(state[0] <= 9) & (state[2] < 10_000))

    start = (q, lax.pow(q, -x), jnp.int32(0))
    w, total, _ = lax.while_loop(unfinished, step, start)
    b = lax.pow(w, -x)
    total = total + b * w / (x - 1) - 0.5 * b
    factor = jnp.ones_like(x)
    for k, denominator in enumerate(_TAIL):
        factor = factor * (x + 2 * k)
        b = b / w
        total = total + factor * b / denominator
        factor = factor * (x + (2 * k + 1))
        b = b / w
    inf, nan = jnp.full_like(x, np.inf), jnp.full_like(x, np.nan)
    whole = q == lax.floor(q)
    total = jnp.where(
        q <= 0, jnp.where(whole, inf, jnp.where(x == lax.floor(x), total, nan)), total
    )
    return jnp.where(x == 1, inf, jnp.where(x < 1, nan, total))


@lowers("aten::polygamma")
def polygamma(n: int, self: Any, *, out: Any) -> Any:
    """The n-th derivative of digamma."""
    x = cast(self, op_math(out.dtype))
    if n == 0:
        return _digamma(x)
    factor = jnp.asarray((-1.0) ** (n + 1) * math.factorial(n), x.dtype)
    return factor * hurwitz_zeta(jnp.full_like(x, n + 1), x)


@lowers("aten::mvlgamma")
def mvlgamma(self: Any, p: int, *, out: Any) -> Any:
    """Logarithm of the multivariate gamma function of dimension ``p``."""
    x = cast(self, op_math(out.dtype))
    total = sum(_lgamma(x - i / 2) for i in range(p))
    return total + p * (p - 1) / 4 * math.log(math.pi)


@lowers("aten::special_zeta")
def zeta(self: Any, other: Any, *, out: Any) -> Any:
    """Hurwitz zeta."""
    dtype = op_math(out.dtype)
    return hurwitz_zeta(*jnp.broadcast_arrays(cast(self, dtype), cast(other, dtype)))


@lowers("aten::angle")
def angle(self: Any, *, out: Any) -> Any:
    """Argument of a complex number; 0 or pi for reals."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return lax.atan2(self.imag, self.real)
    x = cast(self, op_math(out.dtype))
    flat = jnp.where(x < 0, jnp.full_like(x, math.pi), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, flat)
