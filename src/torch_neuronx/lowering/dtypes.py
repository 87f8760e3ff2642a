"""dtype names, JAX dtypes, and PyTorch's type promotion.

JAX promotes by its own lattice, so rules never rely on it: they bring their operands to one dtype
with ``promote`` or ``cast`` first.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from torch_neuronx.lowering.program import COMPLEX_DTYPES, FLOAT_DTYPES, INTEGER_DTYPES

_SPECIAL = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}

REDUCED_FLOATS = frozenset(FLOAT_DTYPES - {"float32", "float64"})


def np_dtype(name: str) -> np.dtype:
    """The NumPy dtype called ``name`` in torch."""
    return np.dtype(_SPECIAL.get(name, name))


def dtype_name(x: Any) -> str:
    """torch's name of the dtype of an array."""
    return np.dtype(x.dtype).name


def is_float(name: str) -> bool:
    """True for real floating dtypes."""
    return name in FLOAT_DTYPES


def is_complex(name: str) -> bool:
    """True for complex dtypes."""
    return name in COMPLEX_DTYPES


def is_integer(name: str) -> bool:
    """True for integers, bool not among them."""
    return name in INTEGER_DTYPES


def op_math(name: str) -> str:
    """The dtype PyTorch computes in: float32 for the reduced floats, else the dtype itself."""
    return "float32" if name in REDUCED_FLOATS else name


def cast(x: Any, name: str) -> Any:
    """``x`` (array or Python number) as an array of dtype ``name``, converting as PyTorch does."""
    target = np_dtype(name)
    if not hasattr(x, "dtype"):
        if isinstance(x, complex) and not is_complex(name):
            x = x.real
        if isinstance(x, float) and is_integer(name):
            x = int(x)
        if isinstance(x, int) and not isinstance(x, bool) and is_integer(name):
            x = (
                int(np.int64(x & (2**64 - 1) if x >= 2**63 else x).astype(target))
                if (x < 2**63)
                else x
            )
        if name in ("float8_e4m3fn", "float8_e8m0fnu"):
            return cast(jnp.asarray(x, dtype=np.float32), name)
        return jnp.asarray(x, dtype=target)
    if x.dtype == target:
        # A weak 0-d parameter keeps its dtype but must not stay weak.
        return jnp.asarray(x, dtype=target)
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not is_complex(name):
        x = x != 0 if name == "bool" else x.real
    if name == "bool":
        return x != 0
    if x.dtype == np.bool_ and (is_float(name) or is_complex(name)):
        return _zero_or_one(x, target)
    x = _into_range(x, name)
    if name in ("uint8", "int8", "int16") and jnp.issubdtype(x.dtype, jnp.floating):
        # PyTorch converts by way of a wide integer and keeps its low bits; XLA would saturate.
        x = x.astype(np.int64)
    return x.astype(target)


def _zero_or_one(x: Any, target: np.dtype) -> Any:
    """A bool as a float. XLA takes ``convert(x) * y`` for ``select(x, y, 0)``, which hides NaN and
    infinity of ``y``."""
    return jnp.where(x, jnp.asarray(1, target), jnp.asarray(0, target))


def alone(x: Any) -> Any:
    """``x``, which XLA computes apart from what reads it.

    The newest CPU plugin (PJRT 0.115) compiles atan2 with a constant operand wrongly: ``atan(x)``,
    which is ``atan2(x, 1)``, was rubbish from 63 elements up. A constant behind a barrier is none.
    """
    return lax.optimization_barrier(x)


_e4m3_max = contextvars.ContextVar("e4m3_max", default=448)


@contextlib.contextmanager
def e4m3_limit(largest: int) -> Iterator[None]:
    """Where conversions to float8_e4m3fn saturate: 448, or less on a target with a narrower one."""
    token = _e4m3_max.set(largest)
    try:
        yield
    finally:
        _e4m3_max.reset(token)


def _into_range(x: Any, name: str) -> Any:
    """``x`` as PyTorch's fp8 conversions see it: e4m3fn saturates, infinities too, and e8m0fnu
    has no sign. The other formats overflow as IEEE does."""
    if name not in ("float8_e4m3fn", "float8_e8m0fnu"):
        return x
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize == 1:
        x = x.astype(np.float32)  # another fp8 format has no sign operations of its own
    if name == "float8_e8m0fnu":
        return jnp.abs(x)
    limit = jnp.asarray(_e4m3_max.get(), x.dtype)
    return jnp.where(jnp.abs(x) > limit, jnp.copysign(limit, x), x)


_RANK = {"bool": 0, "integer": 1, "float": 2, "complex": 3}


def _category(name: str) -> int:
    if name == "bool":
        return 0
    if is_integer(name):
        return 1
    return 3 if is_complex(name) else 2


_ORDER = ["float16", "bfloat16", "float32", "float64"]


def _join(a: str, b: str) -> str:
    """Promotion of two dtypes of equal priority (``torch.promote_types``)."""
    if a == b:
        return a
    if is_complex(a) or is_complex(b):
        wide = {"complex128", "float64"}
        return "complex128" if (a in wide or b in wide) else "complex64"
    if _category(a) < _category(b):
        a, b = b, a
    if _category(a) > _category(b):
        return a
    if is_float(a):
        if "float64" in (a, b):
            return "float64"
        return "float32"
    signed = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
    if a in signed and b in signed:
        return a if signed[a] >= signed[b] else b
    unsigned, other = (a, b) if a.startswith("u") else (b, a)
    if other.startswith("u"):
        return a if np_dtype(a).itemsize >= np_dtype(b).itemsize else b
    if unsigned == "uint8":
        return "int16" if other == "int8" else other
    size = max(signed[other], 2 * np_dtype(unsigned).itemsize)
    return {2: "int16", 4: "int32", 8: "int64"}.get(size, "int64")


def result_type(*xs: Any) -> str:
    """PyTorch's result dtype of arrays and numbers.

    Dimensioned tensors outrank 0-d tensors, which outrank numbers (weak 0-d arrays and Python
    numbers), within a category and below a higher one (``torch.result_type``).
    """
    dims: str | None = None
    zeros: str | None = None
    wrapped: str | None = None
    for x in xs:
        if x is None:
            continue
        if not hasattr(x, "dtype"):
            kind = (
                "bool"
                if isinstance(x, bool)
                else "int64"
                if isinstance(x, int)
                else "float32"
                if isinstance(x, float)
                else "complex64"
            )
            wrapped = kind if wrapped is None else _join(wrapped, kind)
            continue
        name = dtype_name(x)
        if getattr(x, "weak_type", False):
            name = {"float64": "float32", "complex128": "complex64"}.get(name, name)
            wrapped = name if wrapped is None else _join(wrapped, name)
        elif x.ndim == 0:
            zeros = name if zeros is None else _join(zeros, name)
        else:
            dims = name if dims is None else _join(dims, name)

    def combine(high: str | None, low: str | None) -> str | None:
        if high is None:
            return low
        if low is None or _category(high) >= _category(low):
            return high
        if is_complex(low) and is_float(high):
            return "complex128" if high == "float64" else "complex64"
        return low if high is None else (_join(high, low) if is_complex(low) else low)

    result = combine(combine(dims, zeros), wrapped)
    if result is None:
        raise TypeError("result_type needs at least one array or number")
    return result


def promote(*xs: Any) -> tuple[Any, ...]:
    """All operands as arrays of their common dtype."""
    name = result_type(*xs)
    return tuple(cast(x, name) for x in xs)
