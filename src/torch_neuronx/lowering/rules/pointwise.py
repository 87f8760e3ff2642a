"""Element-wise arithmetic on two or more operands, with PyTorch's promotion.

The result's dtype is PyTorch's own answer, so operands are cast to it (to float32 for the reduced
floats, which round once at the end) and computed there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import (
    alone,
    cast,
    is_complex,
    is_integer,
    np_dtype,
    op_math,
    promote,
    result_type,
)
from torch_neuronx.lowering.rules.unary import FLOAT
from torch_neuronx.lowering.table import lowers


def is_one(x: Any) -> bool:
    """True for a Python 1: the usual alpha, beta and value, which cost nothing."""
    return isinstance(x, (bool, int, float)) and x == 1


def _operands(out: Any, *xs: Any) -> list[Any]:
    dtype = op_math(out.dtype)
    return [cast(x, dtype) for x in xs]


def _scaled(x: Any, alpha: Any, dtype: str) -> Any:
    x = cast(x, dtype)
    return x if is_one(alpha) else x * cast(alpha, dtype)


@lowers("aten::add.Tensor", "aten::add.Scalar", static_one=("alpha",))
def add(self: Any, other: Any, alpha: Any = 1, *, out: Any) -> Any:
    """self + alpha * other."""
    if out.dtype == "bool":
        return cast(self, "bool") | (cast(other, "bool") & cast(alpha, "bool"))
    dtype = op_math(out.dtype)
    return cast(self, dtype) + _scaled(other, alpha, dtype)


@lowers("aten::sub.Tensor", "aten::sub.Scalar", static_one=("alpha",))
def sub(self: Any, other: Any, alpha: Any = 1, *, out: Any) -> Any:
    """self - alpha * other."""
    dtype = op_math(out.dtype)
    return cast(self, dtype) - _scaled(other, alpha, dtype)


@lowers("aten::rsub.Tensor", "aten::rsub.Scalar", static_one=("alpha",))
def rsub(self: Any, other: Any, alpha: Any = 1, *, out: Any) -> Any:
    """other - alpha * self."""
    return sub(other, self, alpha, out=out)


@lowers("aten::mul.Tensor", "aten::mul.Scalar")
def mul(self: Any, other: Any, *, out: Any) -> Any:
    """self * other; logical and of bools."""
    a, b = _operands(out, self, other)
    return a & b if out.dtype == "bool" else a * b


@lowers("aten::div.Tensor", "aten::div.Scalar")
def div(self: Any, other: Any, *, out: Any) -> Any:
    """True division."""
    a, b = _operands(out, self, other)
    return a / b


def _no_zero(divisor: Any, checks: Any) -> Any:
    """An integer divisor, checked as CPU does."""
    checks.require(divisor != 0, divisor, "RuntimeError", "ZeroDivisionError")
    return jnp.where(divisor == 0, jnp.ones_like(divisor), divisor)


def _trunc(x: Any) -> Any:
    return jnp.where(x < 0, lax.ceil(x), lax.floor(x))


def _floor_float(a: Any, b: Any) -> Any:
    """Python's floor division of floats, as c10::div_floor_floating computes it."""
    a, b = jnp.broadcast_arrays(a, b)
    mod = lax.rem(a, b)
    quotient = (a - mod) / b
    quotient = jnp.where((mod != 0) & ((b < 0) != (mod < 0)), quotient - 1, quotient)
    floor = lax.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    zero = jnp.where(jnp.signbit(a / b), -jnp.zeros_like(a), jnp.zeros_like(a))
    return jnp.where(b == 0, a / b, jnp.where(quotient != 0, floor, zero))


def _divide(self: Any, other: Any, mode: str | None, out: Any, checks: Any) -> Any:
    if mode is None:
        return div(self, other, out=out)
    # ``out`` may be wider than the operands (an explicit out=), the division is not.
    dtype = result_type(self, other)
    a, b = cast(self, op_math(dtype)), cast(other, op_math(dtype))
    if is_integer(dtype) or dtype == "bool":
        a, b = jnp.broadcast_arrays(a, _no_zero(b, checks))
        quotient = lax.div(a, b)
        if mode == "trunc" or dtype.startswith("u"):
            return quotient
        return jnp.where((lax.rem(a, b) != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
    return _trunc(a / b) if mode == "trunc" else _floor_float(a, b)


@lowers("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(self: Any, other: Any, mode: str | None, *, out: Any, checks: Any) -> Any:
    """Division rounded down ("floor"), towards zero ("trunc") or not at all."""
    return _divide(self, other, mode, out, checks)


@lowers("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(self: Any, other: Any, *, out: Any, checks: Any) -> Any:
    """Division rounded down."""
    return _divide(self, other, "floor", out, checks)


@lowers("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(self: Any, other: Any, *, out: Any, checks: Any) -> Any:
    """C's remainder: the sign of the dividend."""
    a, b = _operands(out, self, other)
    if is_integer(out.dtype):
        b = _no_zero(b, checks)
    return lax.rem(*jnp.broadcast_arrays(a, b))


@lowers("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(self: Any, other: Any, *, out: Any, checks: Any) -> Any:
    """Python's remainder: the sign of the divisor."""
    a, b = _operands(out, self, other)
    if is_integer(out.dtype):
        b = _no_zero(b, checks)
    a, b = jnp.broadcast_arrays(a, b)
    mod = lax.rem(a, b)
    return jnp.where((mod != 0) & ((b < 0) != (mod < 0)), mod + b, mod)


def _integer_power(base: Any, exponent: Any) -> Any:
    """Wrapping integer power; a negative exponent gives the truncated reciprocal."""
    base, exponent = jnp.broadcast_arrays(base, exponent)
    bits = base.dtype.itemsize * 8

    def step(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        result, square, rest = state
        odd = (rest & 1) == 1
        return jnp.where(odd, result * square, result), square * square, rest >> 1

    one = jnp.ones_like(base)
    result = lax.fori_loop(0, bits, step, (one, base, jnp.maximum(exponent, 0)))[0]
    sign = jnp.where((exponent & 1) == 1, base, one)
    inverse = jnp.where(base == 1, one, jnp.where(base == -one, sign, jnp.zeros_like(base)))
    return jnp.where(exponent < 0, inverse, result)


def _power(base: Any, exponent: Any, out: Any) -> Any:
    a, b = _operands(out, base, exponent)
    if is_integer(out.dtype) or out.dtype == "bool":
        if out.dtype == "bool":
            return a | ~b
        return _integer_power(a, b)
    a, b = jnp.broadcast_arrays(a, b)
    if not is_complex(out.dtype):
        return lax.pow(a, b)
    # On the branch cut a zero's sign says from which side the base comes: XLA knows one side.
    below = (a.imag == 0) & jnp.signbit(a.imag)
    result = lax.pow(jnp.where(below, jnp.conj(a), a), jnp.where(below, jnp.conj(b), b))
    return jnp.where(below, jnp.conj(result), result)


@lowers("aten::pow.Tensor_Scalar", static=("exponent",))
def pow_scalar(self: Any, exponent: Any, *, out: Any) -> Any:
    """self ** number. The number is static: small powers become products and roots."""
    x = cast(self, op_math(out.dtype))
    small: dict[float, Callable[[], Any]] = {
        2: lambda: x * x,
        3: lambda: x * x * x,
        1: lambda: x,
        0: lambda: jnp.ones_like(x),
    }
    if not is_integer(out.dtype):
        small |= {
            0.5: lambda: FLOAT["sqrt"](x),
            -0.5: lambda: lax.rsqrt(x),
            -1: lambda: 1 / x,
            -2: lambda: 1 / (x * x),
        }
    if out.dtype != "bool" and not isinstance(exponent, complex) and exponent in small:
        return small[exponent]()
    return _power(self, exponent, out)


@lowers("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def power(self: Any, exponent: Any, *, out: Any) -> Any:
    """self ** exponent, element-wise."""
    return _power(self, exponent, out)


def _hypot(a: Any, b: Any) -> Any:
    a, b = lax.abs(a), lax.abs(b)
    big, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(big == 0, jnp.ones_like(big), big)
    length = big * lax.sqrt(1 + ratio * ratio)
    return jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.full_like(big, np.inf), length)


def logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)) from the larger; complex numbers are ordered by real part."""
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        swap = a.real < b.real
        big, small = jnp.where(swap, b, a), jnp.where(swap, a, b)
        added = big + lax.log1p(lax.exp(small - big))
    else:
        added = jnp.maximum(a, b) + lax.log1p(lax.exp(-lax.abs(a - b)))
    return jnp.where(jnp.isinf(a) & (a == b), a, added)


def _logaddexp2(a: Any, b: Any) -> Any:
    ratio = lax.log1p(lax.exp2(-lax.abs(a - b))) / jnp.asarray(np.log(2.0), a.dtype)
    return jnp.where(jnp.isinf(a) & (a == b), a, jnp.maximum(a, b) + ratio)


def _xlogy(log: Callable[..., Any]) -> Callable[..., Any]:
    def rule(a: Any, b: Any) -> Any:
        product = jnp.where(a == 0, jnp.zeros_like(a), a * log(b))
        return jnp.where(jnp.isnan(b), b, product)

    return rule


def _copysign(a: Any, b: Any) -> Any:
    a = lax.abs(a)
    return jnp.where(jnp.signbit(b), -a, a)


def _ignoring_nan(choose: Callable[..., Any]) -> Callable[..., Any]:
    def rule(a: Any, b: Any) -> Any:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return choose(a, b)
        return jnp.where(jnp.isnan(a), b, jnp.where(jnp.isnan(b), a, choose(a, b)))

    return rule


def _incomplete_gamma(function: Callable[..., Any], none: int) -> Callable[..., Any]:
    """``function`` with its limit ``none`` for a -> inf at finite x, and none where both are."""

    def rule(a: Any, x: Any) -> Any:
        limit = jnp.where(x < np.inf, jnp.full((), none, a.dtype), jnp.full((), np.nan, a.dtype))
        return jnp.where((a == np.inf) & (x >= 0), limit, function(a, x))

    return rule


# Functions of two operands already broadcast and cast to the dtype of the computation.
_BINARY: dict[str, Callable[..., Any]] = {
    "atan2": lambda a, b: lax.atan2(alone(a), alone(b)),
    "hypot": _hypot,
    "copysign.Tensor copysign.Scalar": _copysign,
    "heaviside": lambda a, b: jnp.where(a == 0, b, (a > 0).astype(a.dtype)),
    "logaddexp": logaddexp,
    "logaddexp2": _logaddexp2,
    "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": _xlogy(lax.log),
    "special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar": _xlogy(lax.log1p),
    "gcd": jnp.gcd,
    "lcm": jnp.lcm,
    "igamma": _incomplete_gamma(lax.igamma, 0),
    "igammac": _incomplete_gamma(lax.igammac, 1),
}
_EXACT_BINARY: dict[str, Callable[..., Any]] = {
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "fmax": _ignoring_nan(jnp.maximum),
    "fmin": _ignoring_nan(jnp.minimum),
    "nextafter": lax.nextafter,
}


def _register(names: str, function: Callable[..., Any], exact: bool) -> None:
    @lowers(*[f"aten::{n}" for n in names.split()], exact=exact)
    def rule(self: Any, other: Any, *, out: Any) -> Any:
        dtype = out.dtype if exact else op_math(out.dtype)
        return function(*jnp.broadcast_arrays(cast(self, dtype), cast(other, dtype)))


for _names, _function in _BINARY.items():
    _register(_names, _function, False)
for _names, _function in _EXACT_BINARY.items():
    _register(_names, _function, True)


@lowers("aten::clamp", "aten::clamp.Tensor", exact=True)
def clamp(self: Any, low: Any, high: Any, *, out: Any) -> Any:
    """min(max(self, low), high); nan in any of them wins."""
    x = cast(self, out.dtype)
    if low is not None:
        x = jnp.maximum(x, cast(low, out.dtype))
    if high is not None:
        x = jnp.minimum(x, cast(high, out.dtype))
    return x


@lowers("aten::clamp_min", "aten::clamp_min.Tensor", exact=True)
def clamp_min(self: Any, low: Any, *, out: Any) -> Any:
    """max(self, low)."""
    return clamp(self, low, None, out=out)


@lowers("aten::clamp_max", "aten::clamp_max.Tensor", exact=True)
def clamp_max(self: Any, high: Any, *, out: Any) -> Any:
    """min(self, high)."""
    return clamp(self, None, high, out=out)


@lowers("aten::where.self", exact=True)
def where(condition: Any, self: Any, other: Any, *, out: Any) -> Any:
    """self where condition, else other."""
    return jnp.where(condition != 0, cast(self, out.dtype), cast(other, out.dtype))


@lowers("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", exact=True)
def masked_fill(self: Any, mask: Any, value: Any, *, out: Any) -> Any:
    """value where mask, else self."""
    return jnp.where(mask != 0, cast(value, out.dtype), cast(self, out.dtype))


@lowers("aten::nan_to_num")
def nan_to_num(self: Any, nan: Any, posinf: Any, neginf: Any, *, out: Any) -> Any:
    """Numbers in place of nan and the infinities (by default 0 and the dtype's extremes)."""
    if is_integer(out.dtype) or out.dtype == "bool":
        return self
    if is_complex(out.dtype):
        parts = [nan_to_num(p, nan, posinf, neginf, out=_part(out)) for p in (self.real, self.imag)]
        return lax.complex(*parts)
    limits = jnp.finfo(np_dtype(out.dtype))

    def number(value: Any, default: Any) -> Any:
        return cast(default if value is None else value, out.dtype)

    x = jnp.where(jnp.isnan(self), number(nan, 0.0), self)
    x = jnp.where(self == np.inf, number(posinf, limits.max), x)
    return jnp.where(self == -np.inf, number(neginf, limits.min), x)


def _part(out: Any) -> Any:
    return type(out)("float64" if out.dtype == "complex128" else "float32", out.shape)


@lowers("aten::lerp.Scalar", "aten::lerp.Tensor")
def lerp(self: Any, end: Any, weight: Any, *, out: Any) -> Any:
    """self + weight * (end - self), from the nearer end."""
    a, b, w = _operands(out, self, end, weight)
    return jnp.where(lax.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


@lowers("aten::addcmul", static_one=("value",))
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1, *, out: Any) -> Any:
    """self + value * tensor1 * tensor2."""
    a, x, y = _operands(out, self, tensor1, tensor2)
    return a + (x if is_one(value) else cast(value, op_math(out.dtype)) * x) * y


@lowers("aten::addcdiv", static_one=("value",))
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1, *, out: Any) -> Any:
    """self + value * tensor1 / tensor2."""
    a, x, y = _operands(out, self, tensor1, tensor2)
    return a + (x if is_one(value) else cast(value, op_math(out.dtype)) * x) / y


def _shift_left(a: Any, b: Any) -> Any:
    bits = a.dtype.itemsize * 8
    bad = (b < 0) | (b >= bits)
    return jnp.where(bad, jnp.zeros_like(a), lax.shift_left(a, jnp.where(bad, 0, b)))


def _shift_right(a: Any, b: Any) -> Any:
    last = a.dtype.itemsize * 8 - 1
    shift = lax.shift_right_logical if a.dtype.kind == "u" else lax.shift_right_arithmetic
    if a.dtype.kind == "u":
        bad = b > last
        return jnp.where(bad, jnp.zeros_like(a), shift(a, jnp.where(bad, 0, b)))
    return shift(a, jnp.where((b < 0) | (b > last), last, b).astype(a.dtype))


def _bitwise(names: str, forms: tuple[str, ...], function: Callable[..., Any]) -> None:
    overloads = [f"aten::{n}.{f}" for n in names.split() for f in forms]

    @lowers(*overloads, exact=True)
    def rule(self: Any, other: Any) -> Any:
        return function(*jnp.broadcast_arrays(*promote(self, other)))


_TWO = ("Tensor", "Scalar")
_THREE = (*_TWO, "Scalar_Tensor")
for _name, _function in {
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}.items():
    _bitwise(f"bitwise_{_name}", _THREE, _function)
_bitwise("bitwise_left_shift", ("Tensor", "Tensor_Scalar", "Scalar_Tensor"), _shift_left)
_bitwise("bitwise_right_shift", ("Tensor", "Tensor_Scalar", "Scalar_Tensor"), _shift_right)
_bitwise("__lshift__", _TWO, _shift_left)
_bitwise("__rshift__", _TWO, _shift_right)
