"""Matrix products. Reduced floats accumulate in float32 and round once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import REDUCED_FLOATS, cast, dtype_name, op_math
from torch_neuronx.lowering.layout import behind_barrier, lies_transposed
from torch_neuronx.lowering.rules.pointwise import is_one
from torch_neuronx.lowering.table import lowers

# Rows, or columns, up to which a matrix that lies transposed is read as it lies: (W x^T)^T instead
# of x W^T.
_FEW = 128


def laid_out(x: Any) -> Any:
    """An operand of a product, which lies in memory in the order of its dimensions.

    XLA's CPU code has a fast product of bfloat16 for operands that do, and folds a transpose into
    the others: 1024 x 2048 by 2048 x 512 takes 4.3 ms, with the second transposed 8.6, with the
    first 13.5; moved first 4.9 and 5.4. Only a barrier on the flat array makes it move them.
    """
    if dtype_name(x) != "bfloat16" or x.ndim < 2 or x.size == 0:
        return x
    return behind_barrier(x)


def _turn(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def _first(x: Any, axis: int) -> Any:
    """The first of the two rows, or columns, of which one was asked for."""
    return lax.slice_in_dim(lax.optimization_barrier(x), 0, 1, axis=axis)


def product(a: Any, b: Any, batch: int = 0) -> Any:
    """a (*batch, m, k) times b (*batch, k, n) in the dtype of the accumulation.

    Operands are promoted by nobody: PyTorch demands equal dtypes. Float32 products ask for full
    precision, since accelerators otherwise multiply in bfloat16.
    """
    name = dtype_name(a)
    if a.ndim == 2 and b.ndim == 1:
        if lies_transposed(a):
            return product(b[None], a.T)[0]
        if name == "bfloat16":
            return product(a, b[:, None])[:, 0]
    if a.ndim == b.ndim == batch + 2:
        few = 1 if batch else _FEW
        if (0 < a.shape[-2] <= few and lies_transposed(b)) or (
            0 < b.shape[-1] <= few and lies_transposed(a)
        ):
            # XLA's code for few rows by a transposed matrix copies it or walks it by elements.
            turned = product(_turn(b), _turn(a), batch)
            if 1 in turned.shape[-2:]:
                return turned.reshape(*a.shape[:-1], b.shape[-1])
            # Behind a barrier, or it turns the product back.
            return _turn(lax.optimization_barrier(turned))
        if name == "bfloat16" and 1 in (a.shape[-2], b.shape[-1]):
            # For one row XLA widens all of the matrix; for two it multiplies as they are.
            if a.shape[-2] == 1:
                return _first(product(jnp.concatenate([a, a], -2), b, batch), batch)
            return _first(product(a, jnp.concatenate([b, b], -1), batch), batch + 1)
    leading = tuple(range(batch))
    return lax.dot_general(
        laid_out(a),
        laid_out(b),
        (((a.ndim - 1,), (batch,)), (leading, leading)),
        precision=lax.Precision.HIGHEST if name in ("float32", "complex64") else None,
        preferred_element_type=jnp.float32 if name in REDUCED_FLOATS else a.dtype,
    )


def _blend(self: Any, value: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * value; a beta of zero ignores nan in ``self``."""
    dtype = dtype_name(value)
    if not is_one(alpha):
        value = value * cast(alpha, dtype)
    if is_one(beta):
        return cast(self, dtype) + value
    if not hasattr(beta, "dtype"):
        return value if beta == 0 else cast(self, dtype) * cast(beta, dtype) + value
    scaled = cast(self, dtype) * cast(beta, dtype)
    return jnp.where(beta == 0, jnp.zeros_like(scaled), scaled) + value


@lowers("aten::mm")
def mm(self: Any, mat2: Any) -> Any:
    """(m, k) times (k, n)."""
    return product(self, mat2)


@lowers("aten::_int_mm")
def int_mm(self: Any, mat2: Any) -> Any:
    """int8 matrices into int32."""
    return product(cast(self, "int32"), cast(mat2, "int32"))


@lowers("aten::bmm")
def bmm(self: Any, mat2: Any) -> Any:
    """(b, m, k) times (b, k, n)."""
    return product(self, mat2, 1)


@lowers("aten::mm.dtype", "aten::bmm.dtype")
def mm_dtype(self: Any, mat2: Any, dtype: str) -> Any:
    """A product whose result keeps the accumulation's dtype."""
    return product(self, mat2, self.ndim - 2)


@lowers("aten::mv", "aten::dot")
def mv(self: Any, vec: Any) -> Any:
    """Matrix times vector, or vector times vector."""
    return product(self, vec)


@lowers("aten::vdot")
def vdot(self: Any, other: Any) -> Any:
    """Dot product that conjugates the first vector."""
    return product(jnp.conj(self), other)


_STATIC = ("beta", "alpha")


@lowers("aten::addmm", static_one=_STATIC)
def addmm(self: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * mat1 @ mat2."""
    return _blend(self, product(mat1, mat2), beta, alpha)


@lowers("aten::addmv", static_one=_STATIC)
def addmv(self: Any, mat: Any, vec: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * mat @ vec."""
    return _blend(self, product(mat, vec), beta, alpha)


@lowers("aten::baddbmm", static_one=_STATIC)
def baddbmm(self: Any, batch1: Any, batch2: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * batch1 @ batch2."""
    return _blend(self, product(batch1, batch2, 1), beta, alpha)


@lowers("aten::addbmm", static_one=_STATIC)
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * the sum over the batch of batch1 @ batch2."""
    return _blend(self, jnp.sum(product(batch1, batch2, 1), axis=0), beta, alpha)


@lowers("aten::addr", static_one=_STATIC)
def addr(self: Any, vec1: Any, vec2: Any, beta: Any, alpha: Any, *, out: Any) -> Any:
    """beta * self + alpha * outer(vec1, vec2)."""
    if out.dtype == "bool":
        value = vec1[:, None] & vec2[None, :] & cast(alpha, "bool")
        return (cast(self, "bool") & cast(beta, "bool")) | value
    dtype = "float32" if out.dtype in REDUCED_FLOATS else out.dtype
    return _blend(self, cast(vec1, dtype)[:, None] * cast(vec2, dtype)[None, :], beta, alpha)


@lowers("aten::_addmm_activation", static_one=_STATIC)
def addmm_activation(self: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any, use_gelu: bool) -> Any:
    """addmm, then relu or gelu, rounded once."""
    x = _blend(self, product(mat1, mat2), beta, alpha)
    return jax.nn.gelu(x, approximate=False) if use_gelu else jnp.maximum(x, 0)


@lowers("aten::linalg_cross")
def cross(self: Any, other: Any, dim: int, *, out: Any) -> Any:
    """Cross product of vectors of three along a dimension."""
    dtype = op_math(out.dtype)
    a, b = jnp.broadcast_arrays(cast(self, dtype), cast(other, dtype))
    return jnp.cross(a, b, axis=dim)
