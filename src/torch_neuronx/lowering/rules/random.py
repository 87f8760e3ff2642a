"""Random numbers (decision D9).

Every rule draws through ``philox.Stream``: element i of a draw uses counter offset/4 + i/4, lane
i mod 4. The recipe of each distribution is part of the product: the same seed gives the same
numbers eagerly (where rand is an empty tensor and uniform_) and in compiled graphs (where rand is
one node), so both run the same function here. Recipes:

* uniform: the top m bits of a 32-bit draw times 2^-m, m = 24 for float32, 11 for float16, 8 for
  bfloat16 (the dtype's significand, so that the result stays below the upper bound); 53 bits of a
  64-bit draw for float64. Scaled by (to - from), shifted by from; what rounds to ``to`` becomes
  ``from``.
* normal: Box-Muller on two draws, u1 then u2: sqrt(-2 log(1 - u1)) cos(2 pi u2).
* integers: from + (64-bit draw mod range). One recipe for all ranges, so a changing bound needs
  no new executable; the bias is below range / 2^64.
* bernoulli and dropout: uniform float32 < probability of a one.
* exponential: -log(1 - u) / lambda, never 0. Geometric: ceil(log(1 - u) / log(1 - p)), at least 1.
* cauchy: median + sigma tan(pi (u - 1/2)). Log-normal: exp of a normal.
* randperm: stable argsort of n 64-bit draws.
* multinomial: without replacement (or for one sample) the largest p / e with e exponential; with
  replacement a search of uniform * total in the running sum of p.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import (
    cast,
    dtype_name,
    is_complex,
    is_float,
    is_integer,
    np_dtype,
    op_math,
)
from torch_neuronx.lowering.errors import LoweringError
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.table import lowers

Shape = tuple[int, ...]

_BAD_PROBABILITY = (
    "Expected p_in >= 0 && p_in <= 1 to be true, but got false.  (Could this error message be "
    "improved?  If so, please report an enhancement request to PyTorch.)"
)
_SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}


# --- recipes -----------------------------------------------------------------------------------


def _unit(rng: Stream, shape: Shape, dtype: str) -> Any:
    """Uniform in [0, 1), in the dtype that ``dtype`` computes in."""
    if dtype in _SIGNIFICAND:
        m = _SIGNIFICAND[dtype]
        bits = rng.bits32(shape) >> np.uint32(32 - m)
        return bits.astype(np.float32) * np.float32(2.0**-m)
    return rng.uniform(shape, dtype)


def _uniform(rng: Stream, shape: Shape, dtype: str, low: Any, high: Any) -> Any:
    work = op_math(dtype)
    low, high = cast(low, work), cast(high, work)
    x = cast(_unit(rng, shape, dtype) * (high - low) + low, dtype)
    return jnp.where(x >= cast(high, dtype), cast(low, dtype), x)


def _standard_normal(rng: Stream, shape: Shape, dtype: str) -> Any:
    """Standard normal in float32, or float64 for that dtype."""
    if dtype == "float64":
        u1 = 1 - rng.uniform(shape, "float64")
        u2 = rng.uniform(shape, "float64")
        return jnp.sqrt(-2 * jnp.log(u1)) * jnp.cos(2 * math.pi * u2)
    return rng.normal(shape)


def _normal(rng: Stream, shape: Shape, dtype: str, mean: Any, std: Any) -> Any:
    if is_complex(dtype):
        # Real and imaginary part share the variance.
        part = "float64" if dtype == "complex128" else "float32"
        x = _standard_normal(rng, (*shape, 2), part) * math.sqrt(0.5)
        return lax.complex(x[..., 0], x[..., 1]) * cast(std, dtype) + cast(mean, dtype)
    x = _standard_normal(rng, shape, dtype)
    work = dtype_name(x)
    return x * cast(std, work) + cast(mean, work)


def _as_uint64(x: Any) -> Any:
    """A Python int, or an integer array, modulo 2^64, as an array."""
    if isinstance(x, (int, np.integer)):
        return jnp.asarray(int(x) % 2**64, np.uint64)
    return lax.bitcast_convert_type(x.astype(np.int64), np.uint64)


# C++'s names, as PyTorch's messages have them.
_C_NAMES = {
    "bool": "bool",
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
}


def _check_bounds(dtype: str, low: int, high: int) -> None:
    if low >= high:
        raise LoweringError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    if dtype not in _C_NAMES:
        return
    least, most = (0, 1) if dtype == "bool" else (
        np.iinfo(np_dtype(dtype)).min, np.iinfo(np_dtype(dtype)).max)  # fmt: skip
    for name, value in (("from", low), ("to - 1", high - 1)):
        if not least <= value <= most:
            raise LoweringError(f"{name} is out of bounds for {_C_NAMES[dtype]}")


def _integers(rng: Stream, shape: Shape, dtype: str, low: Any, high: Any) -> Any:
    """Integers in [low, high) as ``dtype``; high 2^63 and a full 64-bit range are possible.

    Bounds that a compiled graph holds as numbers are checked here, in CPU's words; those of eager
    calls are operands, which the launch checks.
    """
    if isinstance(low, int) and isinstance(high, int):
        _check_bounds(dtype, low, high)
    start = _as_uint64(low)
    width = _as_uint64(high) - start
    bits = rng.bits64(shape)
    # A width of 2^64 wraps to 0: all bits count.
    divisor = jnp.broadcast_to(jnp.maximum(width, np.uint64(1)), shape)
    offset = jnp.where(width == 0, bits, lax.rem(bits, divisor))
    return cast(lax.bitcast_convert_type(offset + start, np.int64), dtype)


def _bernoulli(rng: Stream, shape: Shape, p: Any) -> Any:
    return rng.uniform(shape) < cast(p, "float32")


def _exponential(rng: Stream, shape: Shape, dtype: str) -> Any:
    """Standard exponential, strictly positive."""
    work = "float64" if dtype == "float64" else "float32"
    u = 1 - rng.uniform(shape, work)
    half = float(np.finfo(work).eps) / 2
    return jnp.where(u >= 1 - half, jnp.full((), half, u.dtype), -jnp.log(u))


# --- dropout -----------------------------------------------------------------------------------


@lowers("aten::native_dropout")
def native_dropout(
    input: Any, p: Any, train: bool | None, *, out: Any, rng: Stream
) -> tuple[Any, Any]:
    """Input with elements zeroed with probability p, the rest scaled by 1 / (1 - p); the mask."""
    shape = tuple(input.shape)
    if train is False:
        return input, jnp.ones(shape, bool)
    dtype = op_math(out[0].dtype)
    p = cast(p, "float32")
    mask = _bernoulli(rng, shape, 1 - p)
    scale = jnp.where(p == 1, jnp.zeros((), np.float32), 1 / (1 - p))
    x = cast(input, dtype)
    return x * cast(mask, dtype) * cast(scale, dtype), mask


@lowers("aten::native_dropout_backward")
def native_dropout_backward(grad_output: Any, mask: Any, scale: Any, *, out: Any) -> Any:
    """grad * mask * scale."""
    dtype = op_math(out.dtype)
    return cast(grad_output, dtype) * cast(mask, dtype) * cast(scale, dtype)


# --- filling a tensor --------------------------------------------------------------------------


@lowers("aten::bernoulli.p")
def bernoulli_p(
    self: Any, p: Any, generator: Any = None, *, out: Any, rng: Stream, checks: Checks
) -> Any:
    """Ones with probability p."""
    chance = cast(p, "float32")
    checks.require((chance >= 0) & (chance <= 1), np.int64(0), "RuntimeError", _BAD_PROBABILITY)
    return _bernoulli(rng, tuple(self.shape), chance)


@lowers("aten::bernoulli")
def bernoulli(self: Any, generator: Any = None, *, out: Any, rng: Stream, checks: Checks) -> Any:
    """Ones with the probabilities that ``self`` holds."""
    chance = cast(self, "float32")
    checks.require((chance >= 0) & (chance <= 1), np.int64(0), "RuntimeError", _BAD_PROBABILITY)
    return _bernoulli(rng, tuple(self.shape), chance)


@lowers("aten::bernoulli.Tensor")
def bernoulli_tensor(
    self: Any, p: Any, generator: Any = None, *, out: Any, rng: Stream, checks: Checks
) -> Any:
    """Ones with the probabilities that ``p``, broadcast to ``self``, holds."""
    chance = cast(p, "float32")
    checks.require((chance >= 0) & (chance <= 1), np.int64(0), "RuntimeError", _BAD_PROBABILITY)
    return _bernoulli(rng, tuple(self.shape), chance)


# The schema's "from" is a keyword of Python; arguments are positional.


@lowers("aten::uniform")
def uniform(
    self: Any, low: Any = 0.0, to: Any = 1.0, generator: Any = None, *, out: Any, rng: Stream
) -> Any:
    """Uniform in [from, to)."""
    return _uniform(rng, out.shape, out.dtype, low, to)


def _require_std(std: Any, checks: Checks, message: str) -> None:
    std = jnp.asarray(std)
    std = std.real if jnp.issubdtype(std.dtype, jnp.complexfloating) else std
    checks.require(std >= 0, jnp.floor(std), "RuntimeError", message)


@lowers("aten::normal_functional")
def normal_functional(
    self: Any,
    mean: Any = 0.0,
    std: Any = 1.0,
    generator: Any = None,
    *,
    out: Any,
    rng: Stream,
    checks: Checks,
) -> Any:
    """Normal with a number each as mean and standard deviation."""
    _require_std(std, checks, "normal expects std >= 0.0, but found std {value}")
    return _normal(rng, out.shape, out.dtype, mean, std)


@lowers("aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor")
def normal_tensor(
    mean: Any, std: Any, generator: Any = None, *, out: Any, rng: Stream, checks: Checks
) -> Any:
    """Normal with mean and standard deviation broadcast together."""
    _require_std(std, checks, "normal expects all elements of std >= 0.0")
    return _normal(rng, out.shape, out.dtype, mean, std)


def _full_range(dtype: str) -> tuple[int, int]:
    """[low, high) of random_() without bounds: what the dtype holds exactly, from 0."""
    if dtype == "bool":
        return 0, 2
    if is_integer(dtype):
        return 0, int(np.iinfo(np_dtype(dtype)).max) + 1
    return 0, 2 ** (int(jnp.finfo(np_dtype(dtype)).nmant) + 1) + 1


def _last(dtype: str) -> int:
    """One more than the largest integer random_(from, None) may give."""
    if is_float(dtype):
        return min(2 ** (int(jnp.finfo(np_dtype(dtype)).nmant) + 1) + 1, 2**63)
    return _full_range(dtype)[1]


@lowers("aten::random")
def random(self: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Integers over the dtype's own range, from 0."""
    return _integers(rng, out.shape, out.dtype, *_full_range(out.dtype))


@lowers("aten::random.from", operand=("from", "to"))
def random_from(
    self: Any, low: Any, to: Any, generator: Any = None, *, out: Any, rng: Stream
) -> Any:
    """Integers in [from, to), or from ``from`` to the dtype's largest."""
    return _integers(rng, out.shape, out.dtype, low, _last(out.dtype) if to is None else to)


@lowers("aten::random.to", operand=("to",))
def random_to(self: Any, to: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Integers in [0, to)."""
    return _integers(rng, out.shape, out.dtype, 0, to)


@lowers("aten::exponential")
def exponential(
    self: Any, lambd: Any = 1.0, generator: Any = None, *, out: Any, rng: Stream
) -> Any:
    """Exponential with rate lambd."""
    x = _exponential(rng, out.shape, out.dtype)
    return x / cast(lambd, dtype_name(x))


@lowers("aten::geometric")
def geometric(self: Any, p: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Number of trials up to and with the first success."""
    work = "float64" if out.dtype == "float64" else "float32"
    u = 1 - rng.uniform(out.shape, work)
    trials = jnp.maximum(jnp.ceil(jnp.log(u) / jnp.log1p(-cast(p, work))), 1)
    return trials if is_float(out.dtype) else trials.astype(np.int64)


@lowers("aten::log_normal")
def log_normal(
    self: Any, mean: Any = 1.0, std: Any = 2.0, generator: Any = None, *, out: Any, rng: Stream
) -> Any:
    """Exponential of a normal."""
    return jnp.exp(_normal(rng, out.shape, out.dtype, mean, std))


@lowers("aten::cauchy")
def cauchy(
    self: Any, median: Any = 0.0, sigma: Any = 1.0, generator: Any = None, *, out: Any, rng: Stream
) -> Any:
    """Cauchy with the given median and scale."""
    work = "float64" if out.dtype == "float64" else "float32"
    u = rng.uniform(out.shape, work)
    return cast(median, work) + cast(sigma, work) * jnp.tan(math.pi * (u - 0.5))


# --- factories, as compiled graphs hold them ---------------------------------------------------


@lowers("aten::rand", "aten::rand_like")
def rand(*_: Any, out: Any, rng: Stream) -> Any:
    """empty, then uniform_(0, 1)."""
    return _uniform(rng, out.shape, out.dtype, 0.0, 1.0)


@lowers("aten::rand.generator", "aten::rand_like.generator")
def rand_generator(*_: Any, out: Any, rng: Stream) -> Any:
    """rand; the device's generator is the stream."""
    return _uniform(rng, out.shape, out.dtype, 0.0, 1.0)


@lowers("aten::randn", "aten::randn.generator", "aten::randn_like", "aten::randn_like.generator")
def randn(*_: Any, out: Any, rng: Stream) -> Any:
    """empty, then normal_(0, 1)."""
    return _normal(rng, out.shape, out.dtype, 0.0, 1.0)


@lowers("aten::normal.float_float")
def normal_float_float(mean: Any, std: Any, *_: Any, out: Any, rng: Stream) -> Any:
    """empty, then normal_(mean, std)."""
    return _normal(rng, out.shape, out.dtype, mean, std)


@lowers("aten::randint", "aten::randint.generator", operand=("high",))
def randint(high: Any, *_: Any, out: Any, rng: Stream) -> Any:
    """empty, then random_(0, high)."""
    return _integers(rng, out.shape, out.dtype, 0, high)


@lowers("aten::randint.low", "aten::randint.low_generator", operand=("low", "high"))
def randint_low(low: Any, high: Any, *_: Any, out: Any, rng: Stream) -> Any:
    """empty, then random_(low, high)."""
    return _integers(rng, out.shape, out.dtype, low, high)


@lowers(
    "aten::randint_like",
    "aten::randint_like.generator",
    "aten::randint_like.Tensor",
    "aten::randint_like.Tensor_generator",
    operand=("high",),
)
def randint_like(self: Any, high: Any, *_: Any, out: Any, rng: Stream) -> Any:
    """empty_like, then random_(0, high)."""
    high = high.reshape(()) if hasattr(high, "ndim") else high
    return _integers(rng, out.shape, out.dtype, 0, high)


@lowers(
    "aten::randint_like.low_dtype",
    "aten::randint_like.low_generator_dtype",
    operand=("low", "high"),
)
def randint_like_low(self: Any, low: Any, high: Any, *_: Any, out: Any, rng: Stream) -> Any:
    """empty_like, then random_(low, high)."""
    return _integers(rng, out.shape, out.dtype, low, high)


# --- permutations and samples ------------------------------------------------------------------


@lowers("aten::randperm", "aten::randperm.generator")
def randperm(n: int, *_: Any, out: Any, rng: Stream) -> Any:
    """A permutation of 0 to n - 1: the order of n random keys."""
    keys = rng.bits64((n,))
    order = lax.iota(np.int64, n)
    return lax.sort((keys, order), num_keys=1, is_stable=True)[1]


@lowers("aten::multinomial")
def multinomial(
    self: Any,
    num_samples: int,
    replacement: bool = False,
    generator: Any = None,
    *,
    out: Any,
    rng: Stream,
    checks: Checks,
) -> Any:
    """Indices drawn with the (unnormalised) probabilities in the last dimension."""
    p = cast(self, "float64" if dtype_name(self) == "float64" else "float32")
    checks.require(
        jnp.isfinite(p) & (p >= 0),
        np.int64(0),
        "RuntimeError",
        "probability tensor contains either `inf`, `nan` or element < 0",
    )
    total = jnp.sum(p, axis=-1, keepdims=True)
    checks.require(
        total > 0,
        np.int64(0),
        "RuntimeError",
        "invalid multinomial distribution (sum of probabilities <= 0)",
    )
    if not replacement or num_samples == 1:
        scores = p / _exponential(rng, tuple(p.shape), dtype_name(p))
        _, order = lax.top_k(scores, num_samples)
        return order.astype(np.int64)
    running = jnp.cumsum(p, axis=-1)
    u = rng.uniform((*p.shape[:-1], num_samples), dtype_name(p)) * running[..., -1:]
    places = jnp.sum((running[..., None, :] <= u[..., :, None]).astype(np.int64), axis=-1)
    # Where rounding lifts u to the total, the last category that can occur.
    possible = jnp.where(p > 0, lax.broadcasted_iota(np.int64, p.shape, p.ndim - 1), 0)
    return jnp.minimum(places, jnp.max(possible, axis=-1, keepdims=True))
