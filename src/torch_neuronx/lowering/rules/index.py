"""Reading and writing by index tensors.

Indices are checked as CPU checks them (decision D10): the executable reports the first bad one,
reads are clamped and writes dropped. Repeated indices: the last write in row-major order stands,
accumulating operators add every write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    np_dtype,
    op_math,
    promote,
)
from torch_neuronx.lowering.table import lowers

_OUT_OF_RANGE = "index out of range in self"


def _dim(dim: int, ndim: int) -> int:
    return dim % max(ndim, 1)


def _checked(
    index: Any,
    size: int,
    checks: Checks | None,
    exception: str,
    message: str,
    *,
    negative: bool = False,
) -> tuple[Any, Any]:
    """``index`` as int64 inside [0, size), and where it was valid.

    With ``negative``, -size..-1 count from the end.
    """
    index = index.astype(np.int64)
    valid = (index >= (-size if negative else 0)) & (index < size)
    if checks is not None:
        checks.require(valid, index, exception, message)
    if negative:
        index = jnp.where(index < 0, index + size, index)
    return jnp.clip(index, 0, max(size - 1, 0)), valid


def _bounds(dim: int, size: int) -> str:
    return f"index {{value}} is out of bounds for dimension {dim} with size {size}"


def _take(x: Any, index: Any, axis: int) -> Any:
    """Rows of ``x`` along ``axis`` at in-bounds ``index`` (any shape)."""
    if x.shape[axis] == 0:  # only with a failing check or no indices at all
        return jnp.zeros((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
    where = (slice(None),) * axis + (index,)
    return x.at[where].get(mode="promise_in_bounds", wrap_negative_indices=False)


# --- embedding ---------------------------------------------------------------------------------


@lowers("aten::embedding", exact=True)
def embedding(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    checks: Checks,
) -> Any:
    """Rows of ``weight`` (V, D) at ``indices``; padding_idx matters to the gradient only."""
    index, _ = _checked(indices, weight.shape[0], checks, "IndexError", _OUT_OF_RANGE)
    return _take(weight, index, 0)


@lowers("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any,
    indices: Any,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    out: Any,
) -> Any:
    """Gradients summed into the rows they came from, in float32 for reduced floats."""
    index = indices.reshape(-1).astype(np.int64)
    dtype = op_math(out.dtype)
    rows = cast(grad_output, dtype).reshape(index.shape[0], out.shape[1])
    # Outside [0, num_weights) nothing is written, so padding goes there.
    index = jnp.where((index == padding_idx) | (index < 0), num_weights, index)
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, np_dtype(dtype)).at[index].add(1, mode="drop")
        rows = rows / counts.at[index].get(mode="clip")[:, None]
    zeros = jnp.zeros((num_weights, rows.shape[1]), rows.dtype)
    return zeros.at[index].add(rows, mode="drop").reshape(out.shape)


@lowers("aten::embedding_renorm", static=("norm_type",))
def embedding_renorm(
    self: Any, indices: Any, max_norm: Any, norm_type: float, *, checks: Checks
) -> Any:
    """Rows named by ``indices`` scaled down to norm ``max_norm`` where they exceed it."""
    index, valid = _checked(indices.reshape(-1), self.shape[0], checks, "IndexError", _OUT_OF_RANGE)
    dtype = op_math(dtype_name(self))
    rows = cast(_take(self, index, 0), dtype)
    norm = _norm(rows, norm_type, (1,))
    limit = cast(max_norm, dtype)
    # 1e-7 as in ATen, so that a row never ends above the limit.
    scaled = jnp.where(norm > limit, rows * (limit / (norm + 1e-7)), rows)
    return self.at[jnp.where(valid, index, self.shape[0])].set(
        cast(scaled, dtype_name(self)), mode="drop"
    )


def _norm(x: Any, p: float, axes: tuple[int, ...]) -> Any:
    size = jnp.abs(x)
    if p == math.inf:
        return jnp.max(size, axis=axes, keepdims=True)
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=axes, keepdims=True)
    if p == 1:
        return jnp.sum(size, axis=axes, keepdims=True)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=axes, keepdims=True))
    return jnp.sum(size**p, axis=axes, keepdims=True) ** (1 / p)


# --- x[indices] --------------------------------------------------------------------------------


def _index_arrays(
    self: Any, indices: tuple[Any, ...], checks: Checks | None
) -> tuple[tuple[Any, ...], Any]:
    """NumPy-style index (arrays in bounds, slices for None) and where all of it was valid."""
    live = [d for d, x in enumerate(indices) if x is not None]
    for d in live:
        if dtype_name(indices[d]) in ("bool", "uint8"):
            raise NotImplementedError(
                "a boolean mask selects a number of elements that depends on its values; expand "
                "it with nonzero() first"
            )
    where: list[Any] = [slice(None)] * self.ndim
    valid: Any = None
    for order, d in enumerate(live):
        size = self.shape[d]
        # CPU numbers the dimension among the indexed ones.
        index, ok = _checked(
            indices[d], size, checks, "IndexError", _bounds(order, size), negative=True
        )
        where[d] = index
        valid = ok if valid is None else valid & ok
    return tuple(where), valid


def _index_shape(self: Any, indices: tuple[Any, ...]) -> tuple[int, ...]:
    """Shape of ``self[indices]``: the broadcast shape stands where the adjacent indices stood, or
    in front when they are not adjacent."""
    live = [d for d, x in enumerate(indices) if x is not None]
    broadcast = jnp.broadcast_shapes(*(indices[d].shape for d in live))
    rest = [(d, n) for d, n in enumerate(self.shape) if d not in live]
    adjacent = live == list(range(live[0], live[-1] + 1))
    before = tuple(n for d, n in rest if d < live[0]) if adjacent else ()
    after = tuple(n for d, n in rest if not adjacent or d > live[0])
    return (*before, *broadcast, *after)


def _gather_index(self: Any, indices: tuple[Any, ...], checks: Checks | None) -> Any:
    if all(x is None for x in indices):
        return self
    where, _ = _index_arrays(self, indices, checks)
    if self.size == 0:
        return jnp.zeros(_index_shape(self, indices), self.dtype)
    return self.at[where].get(mode="promise_in_bounds", wrap_negative_indices=False)


@lowers("aten::index.Tensor", exact=True)
def index_tensor(self: Any, indices: tuple[Any, ...], *, checks: Checks) -> Any:
    """``self[indices]`` for integer index tensors and None (all of that dimension)."""
    return _gather_index(self, indices, checks)


@lowers("aten::_unsafe_index.Tensor", exact=True)
def unsafe_index(self: Any, indices: tuple[Any, ...]) -> Any:
    """``self[indices]`` with indices that are known to be in bounds."""
    return _gather_index(self, indices, None)


@lowers("aten::_unsafe_masked_index", exact=True)
def unsafe_masked_index(self: Any, mask: Any, indices: tuple[Any, ...], fill: Any) -> Any:
    """``self[indices]`` where ``mask`` holds, else ``fill``; indices are clamped."""
    value = cast(fill, dtype_name(self))
    if self.size == 0:
        return jnp.full(jnp.broadcast_shapes(mask.shape, _index_shape(self, indices)), value)
    return jnp.where(mask, _gather_index(self, _clamp(self, indices), None), value)


def _clamp(self: Any, indices: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        None if x is None else jnp.clip(x.astype(np.int64), -n, n - 1)
        for x, n in zip(indices, self.shape, strict=False)
    )


@lowers("aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(
    self: Any, mask: Any, indices: tuple[Any, ...], values: Any
) -> Any:
    """Adds ``values`` at ``indices`` where ``mask`` holds."""
    if self.size == 0:
        return self
    values = jnp.where(mask, values, jnp.zeros((), values.dtype))
    return _put_index(self, _clamp(self, indices), values, True, None)


def _put_index(
    self: Any, indices: tuple[Any, ...], values: Any, accumulate: bool, checks: Checks | None
) -> Any:
    name = dtype_name(self)
    values = cast(values, name)
    if all(x is None for x in indices):
        values = jnp.broadcast_to(values, self.shape)
        return _plus(self, values) if accumulate else values
    masks = [d for d, x in enumerate(indices) if x is not None]
    if len(masks) == 1 and dtype_name(indices[masks[0]]) in ("bool", "uint8"):
        return _put_mask(self, masks[0], indices[masks[0]] != 0, values, accumulate, checks)
    where, valid = _index_arrays(self, indices, checks)
    values = jnp.broadcast_to(values, _index_shape(self, indices))
    if self.size == 0 or values.size == 0:
        return self
    # One invalid index moves the whole write out of bounds, where it is dropped.
    first = next(d for d, x in enumerate(indices) if x is not None)
    where = tuple(
        jnp.where(valid, x, self.shape[d]) if d == first else x for d, x in enumerate(where)
    )
    if accumulate:
        return _scatter_sum(self, where, values)
    return self.at[where].set(values, mode="drop", wrap_negative_indices=False)


def _plus(a: Any, b: Any) -> Any:
    if dtype_name(a) == "bool":
        return a | b
    dtype = op_math(dtype_name(a))
    return cast(cast(a, dtype) + cast(b, dtype), dtype_name(a))


def _scatter_sum(self: Any, where: Any, values: Any) -> Any:
    """Adds, in float32 for reduced floats, rounding once; bool adds are "or"."""
    name = dtype_name(self)
    if name == "bool":
        return self.at[where].max(values, mode="drop", wrap_negative_indices=False)
    dtype = op_math(name)
    result = (
        cast(self, dtype)
        .at[where]
        .add(cast(values, dtype), mode="drop", wrap_negative_indices=False)
    )
    return cast(result, name)


def _put_mask(
    self: Any, start: int, mask: Any, values: Any, accumulate: bool, checks: Checks | None
) -> Any:
    """``self[..., mask, ...] = values``: the mask covers dimensions from ``start`` on."""
    for d, n in enumerate(mask.shape):
        if n != self.shape[start + d]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match the shape "
                f"of the indexed tensor {list(self.shape)} at index {start + d}"
            )
    trailing = self.ndim - start - mask.ndim
    spread = mask.reshape((1,) * start + mask.shape + (1,) * trailing)
    rank = start + 1 + trailing  # of self[..., mask, ...]
    if values.ndim > rank:
        values = values.reshape(values.shape[values.ndim - rank :])
    values = values.reshape((1,) * (rank - values.ndim) + values.shape)
    count = values.shape[start]
    if count == 1:
        shape = values.shape[:start] + (1,) * mask.ndim + values.shape[start + 1 :]
        chosen = values.reshape(shape)
    else:
        flat = mask.reshape(-1)
        place = jnp.cumsum(flat.astype(np.int64)) - 1
        total = jnp.sum(flat.astype(np.int64))
        if checks is not None:
            text = str(list(values.shape))
            checks.require(
                total == count,
                total,
                "IndexError",
                f"shape mismatch: value tensor of shape {text} cannot be broadcast to indexing "
                "result with {value} elements selected",
            )
        if count == 0:
            return self
        chosen = _take(values, jnp.clip(place, 0, count - 1), start)
        chosen = chosen.reshape(values.shape[:start] + mask.shape + values.shape[start + 1 :])
    if accumulate:
        return jnp.where(spread, _plus(self, chosen), self)
    return jnp.where(spread, chosen, self)


@lowers("aten::index_put", exact=True)
def index_put(
    self: Any, indices: tuple[Any, ...], values: Any, accumulate: bool = False, *, checks: Checks
) -> Any:
    """``self`` with ``self[indices]`` set to, or increased by, ``values``."""
    return _put_index(self, indices, values, accumulate, checks)


@lowers("aten::_unsafe_index_put", exact=True)
def unsafe_index_put(
    self: Any, indices: tuple[Any, ...], values: Any, accumulate: bool = False
) -> Any:
    """index_put with indices that are known to be in bounds."""
    return _put_index(self, indices, values, accumulate, None)


# --- one index along one dimension -------------------------------------------------------------


def _one_dim(*xs: Any) -> tuple[Any, ...]:
    """0-d arrays as 1-d ones."""
    return tuple(x.reshape(1) if x.ndim == 0 else x for x in xs)


@lowers("aten::index_select", exact=True)
def index_select(self: Any, dim: int, index: Any, *, out: Any, checks: Checks) -> Any:
    """Rows along ``dim``."""
    dim = _dim(dim, self.ndim)
    self, index = _one_dim(self, index)
    size = self.shape[dim]
    if dim == 0 or self.ndim == 1:
        error = ("IndexError", _OUT_OF_RANGE)
    else:
        text = f"INDICES element is out of DATA bounds, id={{value}} axis_dim={size}"
        error = ("RuntimeError", text)
    index, _ = _checked(index, size, checks, *error)
    return _take(self, index, dim).reshape(out.shape)


@lowers("aten::index_add", static_one=("alpha",))
def index_add(
    self: Any, dim: int, index: Any, source: Any, alpha: Any = 1, *, checks: Checks
) -> Any:
    """``self`` with ``alpha * source`` added to the rows ``index`` along ``dim``."""
    shape, name = self.shape, dtype_name(self)
    dim = _dim(dim, self.ndim)
    one_d = self.ndim <= 1
    self, index, source = _one_dim(self, index, source)
    size = self.shape[dim]
    error = ("IndexError", _OUT_OF_RANGE) if one_d else ("RuntimeError", _bounds(dim, size))
    index, valid = _checked(index, size, checks, *error)
    dtype = op_math(name)
    source = cast(source, dtype)
    if name == "bool":
        source = source & cast(alpha, "bool")
    elif not (isinstance(alpha, int) and alpha == 1):
        source = source * cast(alpha, dtype)
    where = (slice(None),) * dim + (jnp.where(valid, index, size),)
    return cast(_scatter_sum(cast(self, dtype), where, source), name).reshape(shape)


@lowers("aten::index_copy", exact=True)
def index_copy(self: Any, dim: int, index: Any, source: Any, *, checks: Checks) -> Any:
    """``self`` with the rows ``index`` along ``dim`` replaced by ``source``'s."""
    shape = self.shape
    dim = _dim(dim, self.ndim)
    self, index, source = _one_dim(self, index, source)
    size = self.shape[dim]
    index, valid = _checked(
        index, size, checks, "IndexError", "index_copy_(): " + _bounds(dim, size)
    )
    where = (slice(None),) * dim + (jnp.where(valid, index, size),)
    return self.at[where].set(source, mode="drop", wrap_negative_indices=False).reshape(shape)


@lowers("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", exact=True)
def index_fill(self: Any, dim: int, index: Any, value: Any, *, checks: Checks) -> Any:
    """``self`` with the rows ``index`` along ``dim`` set to one number."""
    shape = self.shape
    dim = _dim(dim, self.ndim)
    self, index = _one_dim(self, index)
    size = self.shape[dim]
    index, valid = _checked(index, size, checks, "IndexError", _bounds(dim, size), negative=True)
    # A mask over the dimension, so that the fill is element-wise and not a scatter of rows.
    hit = jnp.zeros(size, bool).at[jnp.where(valid, index, size)].set(True, mode="drop")
    hit = hit.reshape((1,) * dim + (size,) + (1,) * (self.ndim - dim - 1))
    return jnp.where(hit, cast(value, dtype_name(self)).reshape(()), self).reshape(shape)


# --- gather and scatter ------------------------------------------------------------------------


def _positions(shape: tuple[int, ...], dim: int, index: Any, checks: Checks) -> tuple[Any, Any]:
    """Flat positions in an array of ``shape`` that ``index`` names along ``dim``, and validity."""
    size = shape[dim]
    index, valid = _checked(index, size, checks, "RuntimeError", _bounds(dim, size))
    total = jnp.zeros(index.shape, np.int64)
    stride = 1
    for d in range(len(shape) - 1, -1, -1):
        coordinate = index if d == dim else lax.broadcasted_iota(np.int64, index.shape, d)
        total = total + coordinate * stride
        stride *= shape[d]
    return total, valid


@lowers("aten::gather", exact=True)
def gather(self: Any, dim: int, index: Any, sparse_grad: bool = False, *, checks: Checks) -> Any:
    """``out[i][j] = self[index[i][j]][j]`` for dim 0, and so on."""
    shape = index.shape
    dim = _dim(dim, self.ndim)
    self, index = _one_dim(self, index)
    if self.size == 0 or index.size == 0:
        _checked(index, self.shape[dim], checks, "RuntimeError", _bounds(dim, self.shape[dim]))
        return jnp.zeros(shape, self.dtype)
    place, _ = _positions(self.shape, dim, index, checks)
    return _take(self.reshape(-1), place, 0).reshape(shape)


Writer = Callable[[Any, Any, Any], Any]  # flat array, flat positions, values -> flat array


def _scatter(self: Any, dim: int, index: Any, src: Any, checks: Checks, write: Writer) -> Any:
    """Runs ``write`` over flat arrays. ``src`` is 0-d or at least as large as ``index``."""
    shape = self.shape
    dim = _dim(dim, self.ndim)
    self, index = _one_dim(self, index)
    if index.size == 0:
        return self.reshape(shape)
    place, valid = _positions(self.shape, dim, index, checks)
    place = jnp.where(valid, place, self.size)
    if src.ndim:
        src = lax.slice(src, (0,) * src.ndim, index.shape)
    values = jnp.broadcast_to(src, index.shape).reshape(-1)
    return write(self.reshape(-1), place.reshape(-1), values).reshape(shape)


def _set(flat: Any, place: Any, values: Any) -> Any:
    return flat.at[place].set(values, mode="drop")


def _add(flat: Any, place: Any, values: Any) -> Any:
    return _scatter_sum(flat, place, values)


def _multiply(flat: Any, place: Any, values: Any) -> Any:
    name = dtype_name(flat)
    if name == "bool":
        return flat.at[place].min(values, mode="drop")
    dtype = op_math(name)
    return cast(cast(flat, dtype).at[place].multiply(cast(values, dtype), mode="drop"), name)


@lowers("aten::scatter.src", "aten::scatter.value", exact=True)
def scatter(self: Any, dim: int, index: Any, src: Any, *, checks: Checks) -> Any:
    """``self[index[i][j]][j] = src[i][j]`` for dim 0, and so on."""
    return _scatter(self, dim, index, cast(src, dtype_name(self)), checks, _set)


@lowers("aten::scatter_add")
def scatter_add(self: Any, dim: int, index: Any, src: Any, *, checks: Checks) -> Any:
    """``self[index[i][j]][j] += src[i][j]`` for dim 0, and so on."""
    return _scatter(self, dim, index, cast(src, dtype_name(self)), checks, _add)


@lowers("aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter_reduce_mode(
    self: Any, dim: int, index: Any, src: Any, reduce: str, *, checks: Checks
) -> Any:
    """scatter that adds or multiplies instead of replacing."""
    writers = {"add": _add, "multiply": _multiply}
    if reduce not in writers:
        raise ValueError("reduce argument must be either add or multiply.")
    return _scatter(self, dim, index, cast(src, dtype_name(self)), checks, writers[reduce])


def _limits(name: str) -> tuple[Any, Any]:
    """Smallest and largest value of a dtype."""
    if name == "bool":
        return False, True
    if is_float(name):
        return -math.inf, math.inf
    info = np.iinfo(np_dtype(name))
    return info.min, info.max


def _reducer(reduce: str, include_self: bool) -> Writer:
    """A writer for scatter_reduce and index_reduce."""

    def write(flat: Any, place: Any, values: Any) -> Any:
        name = dtype_name(flat)
        dtype = op_math(name)
        flat, values = cast(flat, dtype), cast(values, dtype)
        low, high = _limits(name) if not is_complex(name) else (0, 0)
        neutral = {"sum": 0, "mean": 0, "prod": 1, "amax": low, "amin": high}
        if reduce not in neutral:
            raise ValueError(
                f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}."
            )
        if not include_self:
            flat = flat.at[place].set(cast(neutral[reduce], dtype), mode="drop")
        if reduce in ("amax", "amin"):
            at = flat.at[place]
            result = (at.max if reduce == "amax" else at.min)(values, mode="drop")
        elif reduce == "prod":
            result = _multiply(flat, place, values)
        else:
            result = _scatter_sum(flat, place, values)
        if reduce == "mean":
            start = jnp.full(flat.shape, int(include_self), np.int64)
            count = jnp.maximum(start.at[place].add(1, mode="drop"), 1)
            if is_float(name) or is_complex(name):
                result = result / cast(count, dtype)
            else:
                result = jnp.floor_divide(result, cast(count, dtype))
        return cast(result, name)

    return write


def _chooses(*args: Any) -> bool:
    """amax and amin give one of their operands, which backward looks for."""
    return args[4] in ("amax", "amin")


@lowers("aten::scatter_reduce.two", selects=_chooses)
def scatter_reduce(
    self: Any,
    dim: int,
    index: Any,
    src: Any,
    reduce: str,
    include_self: bool = True,
    *,
    checks: Checks,
) -> Any:
    """scatter with sum, prod, mean, amax or amin; ``self`` takes part if ``include_self``."""
    return _scatter(self, dim, index, src, checks, _reducer(reduce, include_self))


@lowers("aten::index_reduce", selects=_chooses)
def index_reduce(
    self: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    include_self: bool = True,
    *,
    checks: Checks,
) -> Any:
    """Rows of ``source`` reduced into the rows ``index`` of ``self`` along ``dim``."""
    dim = _dim(dim, self.ndim)
    if source.ndim == 0:
        source = source.reshape(1)
    spread = index.reshape((1,) * dim + (-1,) + (1,) * (source.ndim - dim - 1))
    index, valid = _checked(
        spread,
        max(self.shape, default=1) if self.ndim == 0 else self.shape[dim],
        checks,
        "IndexError",
        _OUT_OF_RANGE,
    )
    index = jnp.broadcast_to(jnp.where(valid, index, -1), source.shape)
    # The second check never speaks first; it turns the marked rows into dropped writes.
    return _scatter(self, dim, index, source, Checks(), _reducer(reduce, include_self))


# --- flat positions and masks ------------------------------------------------------------------


def _flat_bounds(size: int) -> str:
    return f"out of range: tried to access index {{value}} on a tensor of {size} elements."


@lowers("aten::take", exact=True)
def take(self: Any, index: Any, *, checks: Checks) -> Any:
    """Elements of ``self`` seen as flat; negative positions count from the end."""
    place, _ = _checked(
        index, self.size, checks, "IndexError", _flat_bounds(self.size), negative=True
    )
    return _take(self.reshape(-1), place, 0)


@lowers("aten::put", exact=True)
def put(self: Any, index: Any, source: Any, accumulate: bool = False, *, checks: Checks) -> Any:
    """``self`` seen as flat, with ``source`` written or added at ``index``."""
    place, valid = _checked(
        index.reshape(-1), self.size, checks, "IndexError", _flat_bounds(self.size), negative=True
    )
    place = jnp.where(valid, place, self.size)
    if place.size == 0:
        return self
    write = _add if accumulate else _set
    return write(self.reshape(-1), place, source.reshape(-1)).reshape(self.shape)


@lowers("aten::masked_scatter", exact=True)
def masked_scatter(self: Any, mask: Any, source: Any, *, checks: Checks) -> Any:
    """Elements where ``mask`` holds replaced by those of ``source`` in order."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask != 0, shape)
    flat = mask.reshape(-1)
    place = jnp.cumsum(flat.astype(np.int64)) - 1
    checks.require(
        jnp.sum(flat.astype(np.int64)) <= source.size,
        np.int64(source.size),
        "RuntimeError",
        "Number of elements of source < number of ones in mask",
    )
    if source.size == 0 or self.size == 0:
        return self
    chosen = _take(source.reshape(-1), jnp.clip(place, 0, source.size - 1), 0)
    return jnp.where(mask, chosen.reshape(shape), self)


@lowers("aten::masked_scatter_backward", exact=True)
def masked_scatter_backward(grad_output: Any, mask: Any, sizes: tuple[int, ...]) -> Any:
    """The gradient of masked_scatter's source: selected elements in order, then zeros."""
    mask = jnp.broadcast_to(mask != 0, grad_output.shape).reshape(-1)
    n = math.prod(sizes)
    place = jnp.where(mask, jnp.cumsum(mask.astype(np.int64)) - 1, n)
    zeros = jnp.zeros(n, grad_output.dtype)
    return zeros.at[place].set(grad_output.reshape(-1), mode="drop").reshape(sizes)


# --- searching ---------------------------------------------------------------------------------


def _search(
    sequence: Any, values: Any, right: bool, sorter: Any = None, checks: Checks | None = None
) -> Any:
    """Binary search as ATen does it, so unsorted sequences and NaN give the same answers.

    ``sequence`` (..., N), or (N,) for all of ``values`` (..., M).
    """
    shape = values.shape
    if sequence.ndim == 1:
        sequence = sequence.reshape(1, sequence.size)
        values = values.reshape(1, values.size)
        sorter = None if sorter is None else sorter.reshape(1, -1)
    else:
        count = math.prod(sequence.shape[:-1])
        sequence = sequence.reshape(count, sequence.shape[-1])
        values = values.reshape(count, values.shape[-1])
        sorter = None if sorter is None else sorter.reshape(sequence.shape)
    n = sequence.shape[-1]
    if sorter is not None:
        order, _ = _checked(
            sorter, n, checks, "RuntimeError", "torch.searchsorted(): sorter index out of range"
        )
        sequence = jnp.take_along_axis(sequence, order, axis=-1)
    low = jnp.zeros(values.shape, np.int64)
    high = jnp.full(values.shape, n, np.int64)

    def step(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = state
        middle = low + ((high - low) >> 1)
        probe = jnp.take_along_axis(sequence, jnp.minimum(middle, n - 1), axis=-1)
        go = ~(probe > values) if right else ~(probe >= values)
        active = low < high
        return jnp.where(active & go, middle + 1, low), jnp.where(active & ~go, middle, high)

    if n and values.size:
        low, high = lax.fori_loop(0, n.bit_length(), step, (low, high))
    return low.reshape(shape)


@lowers("aten::searchsorted.Tensor", "aten::searchsorted.Scalar", exact=True)
def searchsorted(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
    *,
    checks: Checks,
) -> Any:
    """Where each value would be inserted into the sorted last dimension."""
    sequence, values = promote(sorted_sequence, self)
    return _search(sequence, values, right or side == "right", sorter, checks)


@lowers("aten::bucketize.Tensor", "aten::bucketize.Scalar", exact=True)
def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    """Number of boundaries below each value."""
    values, sequence = promote(self, boundaries)
    return _search(sequence, values, right)
