"""Counting, hashing and taking numbers apart.

unique and bincount, whose results' shapes depend on data, are composed of other operators in
csrc/torch/dispatch/unique.cc.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, dtype_name, is_float, op_math
from torch_neuronx.lowering.table import lowers


@lowers("aten::histc")
def histc(self: Any, bins: int = 100, low: Any = 0, high: Any = 0, *, checks: Checks) -> Any:
    """Counts of elements in ``bins`` equal intervals of [min, max], the last one closed.

    Without a range (min = max) that of the data, widened by one on both sides if it is a point.
    """
    name = op_math(dtype_name(self))
    x = cast(self, name).reshape(-1)
    low, high = cast(low, name), cast(high, name)
    checks.require(
        low <= high, np.int64(0), "RuntimeError", "torch.histc: max must be larger than min"
    )
    if x.size:
        given = low != high
        low = jnp.where(given, low, jnp.min(x))
        high = jnp.where(given, high, jnp.max(x))
    point = low == high
    low, high = jnp.where(point, low - 1, low), jnp.where(point, high + 1, high)
    checks.require(
        jnp.isfinite(low) & jnp.isfinite(high),
        np.int64(0),
        "RuntimeError",
        "torch.histc: the range of the data or of min and max is not finite",
    )
    place = jnp.floor((x - low) * bins / (high - low))
    place = jnp.minimum(place, bins - 1).astype(np.int32)
    inside = (x >= low) & (x <= high)
    counts = jnp.zeros(bins, np.int32)
    counts = counts.at[jnp.where(inside, place, 0)].add(inside.astype(np.int32), mode="drop")
    return cast(counts, dtype_name(self))


@lowers("aten::hash_tensor", exact=True)
def hash_tensor(self: Any, dim: tuple[int, ...] = (), keepdim: bool = False, mode: int = 0) -> Any:
    """Exclusive or of all elements' bits as 64-bit numbers (floats as float64)."""
    x = self
    if is_float(dtype_name(x)):
        words = lax.bitcast_convert_type(x.astype(np.float64), np.uint64)
    else:
        words = x.astype(np.int64).astype(np.uint64)
    axes = tuple(d % max(x.ndim, 1) for d in dim) or tuple(range(x.ndim))
    if x.ndim == 0:
        return words
    value = lax.reduce(words, np.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(value, axes) if keepdim else value


# Bits of the significand after the point, and the exponent's bias.
_FORMATS: dict[int, tuple[int, int, Any]] = {4: (23, 127, np.uint32), 8: (52, 1023, np.uint64)}


@lowers("aten::frexp.Tensor", exact=True)
def frexp(self: Any) -> tuple[Any, Any]:
    """Mantissas of magnitude in [1/2, 1) and exponents of two; subnormals too."""
    name = dtype_name(self)
    x = cast(self, op_math(name))
    digits, bias, word = _FORMATS[x.dtype.itemsize]
    bits = lax.bitcast_convert_type(x, word)
    sign = bits & word(1 << (8 * x.dtype.itemsize - 1))
    fraction = bits & word((1 << digits) - 1)
    field = (bits >> word(digits)) & word(2 * bias + 1)
    subnormal = (field == 0) & (fraction != 0)
    # A subnormal's leading bit moves to the hidden place.
    lift = lax.clz(fraction) - word(8 * x.dtype.itemsize - 1 - digits)
    lift = jnp.where(subnormal, lift, word(0))
    fraction = (fraction << lift) & word((1 << digits) - 1)
    exponent = jnp.where(subnormal, word(1), field).astype(np.int32) - lift.astype(np.int32)
    exponent = exponent - np.int32(bias - 1)
    mantissa = lax.bitcast_convert_type(sign | word((bias - 1) << digits) | fraction, x.dtype)
    zero = (field == 0) & ~subnormal
    plain = zero | (field == word(2 * bias + 1))  # zeros, infinities and NaNs stay
    return (
        cast(jnp.where(plain, x, mantissa), name),
        jnp.where(plain, np.int32(0), exponent),
    )


_ZERO = "Expected Tensor with single nonzero value, but got zero"


def _assert(self: Any, message: str, checks: Checks) -> tuple[Any, ...]:
    if self.size != 1:
        kind = "no values" if self.size == 0 else "more than one value"
        raise ValueError(f"Boolean value of Tensor with {kind} is ambiguous")
    checks.require(self != 0, np.int64(0), "RuntimeError", message)
    return ()


@lowers("aten::_assert_async", exact=True)
def assert_async(self: Any, *, checks: Checks) -> tuple[Any, ...]:
    """Fail, at the next synchronisation, where the element is zero."""
    return _assert(self, _ZERO, checks)


@lowers("aten::_assert_async.msg", exact=True)
def assert_async_msg(self: Any, assert_msg: str, *, checks: Checks) -> tuple[Any, ...]:
    """Fail with ``assert_msg``, at the next synchronisation, where the element is zero."""
    return _assert(self, assert_msg, checks)


@lowers("aten::_compute_linear_combination")
def compute_linear_combination(input: Any, coefficients: Any) -> Any:
    """Row i is the sum over j of coefficients[i, j] * input[j]."""
    flat = input.reshape(input.shape[0], -1)
    total = lax.dot(coefficients.astype(flat.dtype), flat, precision=lax.Precision.HIGHEST)
    return total.reshape(coefficients.shape[0], *input.shape[1:])
