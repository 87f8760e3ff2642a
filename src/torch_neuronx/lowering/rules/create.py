"""Tensors from numbers. Uninitialised ones are zeros."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, is_integer, np_dtype, op_math
from torch_neuronx.lowering.table import lowers


def constant(value: Any, out: Any) -> Any:
    """``out`` filled with a number."""
    return jnp.broadcast_to(cast(value, out.dtype), out.shape)


def _filled(value: int, *names: str) -> None:
    @lowers(*[f"aten::{n}" for n in names], exact=True)
    def rule(*args: Any, out: Any) -> Any:
        return constant(value, out)


_filled(
    0,
    "zeros",
    "zeros_like",
    "new_zeros",
    "zero",
    "empty.memory_format",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "_efficientzerotensor",
)
_filled(1, "ones", "ones_like", "new_ones")


@lowers("aten::full", exact=True)
def full(size: Any, fill_value: Any, *plumbing: Any, out: Any) -> Any:
    """A number everywhere."""
    return constant(fill_value, out)


@lowers("aten::full_like", "aten::fill.Scalar", "aten::fill.Tensor", exact=True)
def full_like(self: Any, fill_value: Any, *plumbing: Any, out: Any) -> Any:
    """A number everywhere, shaped like a tensor."""
    return constant(fill_value, out)


@lowers("aten::new_full", exact=True)
def new_full(self: Any, size: Any, fill_value: Any, *plumbing: Any, out: Any) -> Any:
    """A number everywhere."""
    return constant(fill_value, out)


@lowers("aten::scalar_tensor", exact=True)
def scalar_tensor(s: Any, *plumbing: Any, out: Any) -> Any:
    """A 0-d tensor."""
    return constant(s, out)


def _range(start: Any, step: Any, out: Any) -> Any:
    dtype = "int64" if is_integer(out.dtype) else op_math(out.dtype)
    index = jnp.arange(out.shape[0], dtype=np_dtype(dtype))
    return cast(start, dtype) + index * cast(step, dtype)


@lowers("aten::arange")
def arange(end: Any, *plumbing: Any, out: Any) -> Any:
    """0, 1, ... below end."""
    return _range(0, 1, out)


@lowers("aten::arange.start")
def arange_start(start: Any, end: Any, *plumbing: Any, out: Any) -> Any:
    """start, start + 1, ... below end."""
    return _range(start, 1, out)


@lowers("aten::arange.start_step")
def arange_step(start: Any, end: Any, step: Any, *plumbing: Any, out: Any) -> Any:
    """start, start + step, ... before end."""
    return _range(start, step, out)


@lowers("aten::range")
def range_(start: Any, end: Any, *plumbing: Any, out: Any) -> Any:
    """start, start + 1, ... up to end, end included."""
    return _range(start, 1, out)


@lowers("aten::range.step")
def range_step(start: Any, end: Any, step: Any, *plumbing: Any, out: Any) -> Any:
    """start, start + step, ... up to end, end included."""
    return _range(start, step, out)


def _linspace(start: Any, end: Any, steps: int, dtype: str) -> Any:
    """Computed from both ends, as PyTorch does, so that it is symmetric."""
    a, b = cast(start, dtype), cast(end, dtype)
    index = jnp.arange(steps, dtype=np.int64)
    if steps == 1:
        return jnp.broadcast_to(a, (1,))
    step = (b - a) / cast(steps - 1, dtype)
    rising = a + cast(index, dtype) * step
    falling = b - cast(steps - 1 - index, dtype) * step
    return jnp.where(index < steps // 2, rising, falling)


def _working(out: Any) -> str:
    return "float32" if is_integer(out.dtype) else op_math(out.dtype)


@lowers(
    "aten::linspace",
    "aten::linspace.Tensor_Tensor",
    "aten::linspace.Tensor_Scalar",
    "aten::linspace.Scalar_Tensor",
)
def linspace(start: Any, end: Any, steps: int, *plumbing: Any, out: Any) -> Any:
    """``steps`` numbers evenly from start to end."""
    if is_integer(out.dtype):  # truncates its ends, then steps in float32
        start, end = cast(start, out.dtype), cast(end, out.dtype)
    return _linspace(start, end, steps, _working(out))


@lowers(
    "aten::logspace",
    "aten::logspace.Tensor_Tensor",
    "aten::logspace.Tensor_Scalar",
    "aten::logspace.Scalar_Tensor",
    static=("base",),
)
def logspace(start: Any, end: Any, steps: int, base: float, *plumbing: Any, out: Any) -> Any:
    """base to the power of ``steps`` numbers evenly from start to end."""
    dtype = _working(out)
    if is_integer(out.dtype):
        start, end = cast(start, out.dtype), cast(end, out.dtype)
    exponents = _linspace(start, end, steps, dtype)
    return lax.pow(jnp.full_like(exponents, base), exponents)


@lowers("aten::eye", "aten::eye.m", exact=True)
def eye(n: int, *rest: Any, out: Any) -> Any:
    """Ones on the diagonal."""
    return jnp.eye(*out.shape, dtype=np_dtype(out.dtype))


@lowers("aten::tril_indices", exact=True)
def tril_indices(row: int, col: int, offset: int, *plumbing: Any, out: Any) -> Any:
    """Rows and columns of the lower triangle."""
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)), np_dtype(out.dtype))


@lowers("aten::triu_indices", exact=True)
def triu_indices(row: int, col: int, offset: int, *plumbing: Any, out: Any) -> Any:
    """Rows and columns of the upper triangle."""
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)), np_dtype(out.dtype))


@lowers("aten::complex", exact=True)
def complex_(real: Any, imag: Any) -> Any:
    """Complex numbers of real and imaginary parts."""
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@lowers("aten::polar")
def polar(absolute: Any, angle: Any) -> Any:
    """Complex numbers of magnitudes and arguments."""
    size, turn = jnp.broadcast_arrays(absolute, angle)
    return lax.complex(size * lax.cos(turn), size * lax.sin(turn))
