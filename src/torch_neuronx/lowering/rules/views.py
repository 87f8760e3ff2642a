"""Views and shape operators as functions: they return what the view would show.

In eager a view is metadata and none of the view rules runs; compiled graphs and the ``_copy``
overloads use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering import views
from torch_neuronx.lowering.dtypes import cast, dtype_name
from torch_neuronx.lowering.layout import transposed
from torch_neuronx.lowering.program import Array, View
from torch_neuronx.lowering.table import lowers


def view(name: str, overload: str = "", **options: Any) -> Callable[..., Any]:
    """Register ``name`` and ``name_copy``."""
    suffix = f".{overload}" if overload else ""
    return lowers(f"aten::{name}{suffix}", f"aten::{name}_copy{suffix}", exact=True, **options)


@view("view")
def reshape(self: Any, size: tuple[int, ...], *, out: Any) -> Any:
    """Another shape, row-major."""
    return self.reshape(out.shape)


lowers("aten::_unsafe_view", exact=True)(reshape)


@view("_reshape_alias")
def reshape_alias(self: Any, size: Any, stride: Any, *, out: Any) -> Any:
    """Another shape, row-major; strides are the caller's affair."""
    return self.reshape(out.shape)


@view("alias")
def alias(self: Any) -> Any:
    """The tensor itself."""
    return self


view("detach")(alias)
lowers("aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy", exact=True)(alias)


@view("permute")
def permute(self: Any, dims: tuple[int, ...]) -> Any:
    """Dimensions in another order."""
    return transposed(self, [d % self.ndim for d in dims]) if self.ndim else self


@view("transpose", "int")
def transpose(self: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged."""
    if not self.ndim:
        return self
    order = list(range(self.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return transposed(self, order)


@view("t")
def matrix_transpose(self: Any) -> Any:
    """The transposed matrix; vectors and scalars stay."""
    return transposed(self, (1, 0)) if self.ndim == 2 else self


@view("expand")
def expand(self: Any, size: Any, implicit: bool, *, out: Any) -> Any:
    """Broadcast to ``size``."""
    return jnp.broadcast_to(self, out.shape)


@view("squeeze")
def squeeze(self: Any, *, out: Any) -> Any:
    """Without dimensions of size one."""
    return self.reshape(out.shape)


@lowers(
    "aten::squeeze.dim",
    "aten::squeeze.dims",
    "aten::unsqueeze",
    "aten::squeeze_copy.dim",
    "aten::squeeze_copy.dims",
    "aten::unsqueeze_copy",
    exact=True,
)
def squeeze_dim(self: Any, dim: Any, *, out: Any) -> Any:
    """With a dimension of size one removed or added."""
    return self.reshape(out.shape)


@view("select", "int", operand=("index",))
def select(self: Any, dim: int, index: Any) -> Any:
    """One position of a dimension. The index may be an operand."""
    axis = dim % self.ndim
    if isinstance(index, int):
        return lax.index_in_dim(self, index % self.shape[axis], axis, keepdims=False)
    index = jnp.where(index < 0, index + self.shape[axis], index)
    return lax.dynamic_index_in_dim(self, index, axis, keepdims=False)


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """PyTorch's slice bounds: negative counts from the end, then clamped."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end


def _start(size: int, start: Any) -> Any:
    """Where a slice starts, which may be an operand."""
    if start is None or isinstance(start, int):
        return _bounds(size, start, None)[0]
    return jnp.where(start < 0, start + size, start)


@view("slice", "Tensor", graph_operand=("start", "end"))
def slice_tensor(self: Any, dim: int, start: Any, end: Any, step: int, *, out: Any) -> Any:
    """Every ``step``-th position from start to end. Both may be operands: the result's shape tells
    how many there are."""
    axis = dim % self.ndim
    count = out.shape[axis]
    span = (count - 1) * step + 1 if count else 0
    first = _start(self.shape[axis], start)
    if not isinstance(first, int):
        self, first = lax.dynamic_slice_in_dim(self, first, span, axis), 0
    return lax.slice_in_dim(self, first, first + span, step, axis)


@lowers("aten::narrow_copy", exact=True)
def narrow(self: Any, dim: int, start: int, length: int) -> Any:
    """``length`` positions from ``start``."""
    axis = dim % self.ndim
    start = start + self.shape[axis] if start < 0 else start
    return lax.slice_in_dim(self, start, start + length, 1, axis)


@view("as_strided")
def as_strided(self: Any, size: Any, stride: Any, offset: int | None) -> Any:
    """A strided view of the row-major buffer of ``self``."""
    name = dtype_name(self)
    seen = View(name, tuple(size), tuple(stride), offset or 0)
    return views.read(self.reshape(-1), Array(name, (self.size,)), seen, offset or 0)


def _pieces(self: Any, sizes: list[int], dim: int) -> tuple[Any, ...]:
    axis, start, pieces = dim % self.ndim, 0, []
    for n in sizes:
        pieces.append(lax.slice_in_dim(self, start, start + n, 1, axis))
        start += n
    return tuple(pieces)


@view("split", "Tensor")
def split(self: Any, size: int, dim: int) -> tuple[Any, ...]:
    """Pieces of ``size``, the last one perhaps smaller."""
    total = self.shape[dim]
    if total == 0 or size == 0:
        return (self,)
    return _pieces(self, [min(size, total - i) for i in range(0, total, size)], dim)


lowers("aten::unsafe_split.Tensor", exact=True)(split)


@view("split_with_sizes")
def split_with_sizes(self: Any, sizes: tuple[int, ...], dim: int) -> tuple[Any, ...]:
    """Pieces of the given sizes."""
    return _pieces(self, list(sizes), dim)


lowers("aten::unsafe_split_with_sizes", exact=True)(split_with_sizes)


@view("unbind", "int")
def unbind(self: Any, dim: int) -> tuple[Any, ...]:
    """Every position of a dimension."""
    axis = dim % self.ndim
    return tuple(lax.index_in_dim(self, i, axis, False) for i in range(self.shape[axis]))


@view("diagonal")
def diagonal(self: Any, offset: int, dim1: int, dim2: int) -> Any:
    """The diagonal of two dimensions, as last dimension."""
    return jnp.diagonal(self, offset, dim1, dim2)


@lowers("aten::view.dtype", "aten::view_copy.dtype", exact=True)
def view_dtype(self: Any, dtype: str, *, out: Any) -> Any:
    """The same bytes as another dtype."""
    return views.bitcast_flat(self.reshape(-1), dtype).reshape(out.shape)


@view("view_as_real")
def view_as_real(self: Any) -> Any:
    """Real and imaginary parts as last dimension."""
    return jnp.stack([self.real, self.imag], axis=-1)


@view("view_as_complex")
def view_as_complex(self: Any) -> Any:
    """Complex numbers of a last dimension of two."""
    return lax.complex(self[..., 0], self[..., 1])


@view("unfold")
def unfold(self: Any, dim: int, size: int, step: int) -> Any:
    """Windows of a dimension, as last dimension."""
    if self.ndim == 0:
        return self.reshape(1)[:size]
    axis = dim % self.ndim
    count = (self.shape[axis] - size) // step + 1
    if size * count == 0:
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :], size)
        return jnp.zeros(shape, self.dtype)
    if size == step:
        whole = lax.slice_in_dim(self, 0, count * size, 1, axis)
        x = whole.reshape(*self.shape[:axis], count, size, *self.shape[axis + 1 :])
    else:
        places = np.arange(count)[:, None] * step + np.arange(size)
        x = jnp.take(self, places, axis=axis, mode="clip")
    return jnp.moveaxis(x, axis + 1, -1)


@lowers("aten::unfold_backward")
def unfold_backward(
    grad_in: Any, input_sizes: tuple[int, ...], dim: int, size: int, step: int
) -> Any:
    """Each window's gradient added where the window lies; ``grad_in`` has them last."""
    if not input_sizes:
        return grad_in.sum().astype(grad_in.dtype)
    axis = dim % len(input_sizes)
    windows = jnp.moveaxis(grad_in, axis, -2)
    count = windows.shape[-2]
    places = np.arange(count)[:, None] * step + np.arange(size)
    rest = (n for i, n in enumerate(input_sizes) if i != axis)
    whole = jnp.zeros((*rest, input_sizes[axis]), grad_in.dtype)
    return jnp.moveaxis(whole.at[..., places].add(windows, mode="drop"), -1, axis)


@lowers("aten::cat", exact=True)
def cat(tensors: tuple[Any, ...], dim: int, *, out: Any) -> Any:
    """Joined along a dimension; empty vectors are ignored, as ever."""
    kept = [cast(t, out.dtype) for t in tensors if t.shape != (0,) or len(out.shape) == 1]
    return lax.concatenate(kept, dim % len(out.shape)) if kept else jnp.zeros(out.shape)


@lowers("aten::stack", exact=True)
def stack(tensors: tuple[Any, ...], dim: int, *, out: Any) -> Any:
    """Joined along a new dimension."""
    return jnp.stack([cast(t, out.dtype) for t in tensors], dim % len(out.shape))


@lowers("aten::flip", exact=True)
def flip(self: Any, dims: tuple[int, ...]) -> Any:
    """Dimensions reversed."""
    return lax.rev(self, tuple(d % self.ndim for d in dims)) if self.ndim else self


@lowers("aten::roll", exact=True)
def roll(self: Any, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """Rotated along dimensions, or flat if none is given."""
    if self.size == 0:
        return self
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, tuple(shifts), tuple(dims)) if self.ndim else self


@lowers("aten::rot90", exact=True)
def rot90(self: Any, k: int, dims: tuple[int, ...]) -> Any:
    """Rotated by quarter turns in the plane of two dimensions."""
    return jnp.rot90(self, k, tuple(dims))


@lowers("aten::repeat", exact=True)
def repeat(self: Any, repeats: tuple[int, ...]) -> Any:
    """Tiled."""
    x = self.reshape((1,) * (len(repeats) - self.ndim) + self.shape)
    return jnp.tile(x, repeats)


@lowers("aten::constant_pad_nd", exact=True)
def constant_pad_nd(self: Any, pad: tuple[int, ...], value: Any) -> Any:
    """Padded from the last dimension on; negative amounts crop."""
    amounts = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        amounts[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, cast(value, dtype_name(self)), amounts)


def _triangle(lower: bool) -> Callable[..., Any]:
    def rule(self: Any, diagonal: Any) -> Any:
        rows = lax.broadcasted_iota(np.int64, self.shape, self.ndim - 2)
        columns = lax.broadcasted_iota(np.int64, self.shape, self.ndim - 1)
        distance = columns - rows
        keep = distance <= diagonal if lower else distance >= diagonal
        return jnp.where(keep, self, jnp.zeros_like(self))

    return rule


lowers("aten::tril", operand=("diagonal",), exact=True)(_triangle(True))
lowers("aten::triu", operand=("diagonal",), exact=True)(_triangle(False))


@lowers("aten::diag_embed", exact=True)
def diag_embed(self: Any, offset: int, dim1: int, dim2: int, *, out: Any) -> Any:
    """The last dimension on the diagonal of two new ones."""
    ndim = len(out.shape)
    n = self.shape[-1] + abs(offset)
    first, second = dim1 % ndim, dim2 % ndim
    rows = np.arange(self.shape[-1]) + max(-offset, 0)
    columns = np.arange(self.shape[-1]) + max(offset, 0)
    square = jnp.zeros((*self.shape[:-1], n, n), self.dtype).at[..., rows, columns].set(self)
    return jnp.moveaxis(square, (-2, -1), (first, second))


@lowers("aten::slice_scatter", graph_operand=("start", "end"), exact=True)
def slice_scatter(self: Any, src: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    """``self`` with ``src`` in the place of a slice, whose bounds may be operands."""
    axis = dim % self.ndim
    first = _start(self.shape[axis], start)
    src = cast(src, dtype_name(self))
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, first, axis)
    index = first + step * np.arange(src.shape[axis])
    return self.at[(slice(None),) * axis + (index,)].set(src)


@lowers("aten::select_scatter", operand=("index",), exact=True)
def select_scatter(self: Any, src: Any, dim: int, index: Any) -> Any:
    """``self`` with ``src`` at one position of a dimension."""
    axis = dim % self.ndim
    size = self.shape[axis]
    index = index % size if isinstance(index, int) else jnp.where(index < 0, index + size, index)
    return lax.dynamic_update_index_in_dim(
        self, jnp.expand_dims(cast(src, dtype_name(self)), axis), index, axis
    )


@lowers("aten::diagonal_scatter", exact=True)
def diagonal_scatter(self: Any, src: Any, offset: int, dim1: int, dim2: int) -> Any:
    """``self`` with ``src`` on a diagonal."""
    first, second = dim1 % self.ndim, dim2 % self.ndim
    x = jnp.moveaxis(self, (first, second), (-2, -1))
    n = src.shape[-1]
    rows, columns = np.arange(n) + max(-offset, 0), np.arange(n) + max(offset, 0)
    x = x.at[..., rows, columns].set(cast(src, dtype_name(self)))
    return jnp.moveaxis(x, (-2, -1), (first, second))


@lowers("aten::as_strided_scatter", exact=True)
def as_strided_scatter(self: Any, src: Any, size: Any, stride: Any, offset: int | None) -> Any:
    """``self`` with ``src`` written to a strided view of it."""
    name = dtype_name(self)
    seen = View(name, tuple(size), tuple(stride), offset or 0)
    flat = Array(name, (self.size,))
    written = views.write(self.reshape(-1), flat, seen, offset or 0, cast(src, name))
    return written.reshape(self.shape)


@lowers("aten::pixel_shuffle", exact=True)
def pixel_shuffle(self: Any, factor: int, *, out: Any) -> Any:
    """Channels to space."""
    *batch, c, h, w = self.shape
    x = self.reshape(*batch, c // factor**2, factor, factor, h, w)
    n = len(batch)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return jnp.transpose(x, order).reshape(out.shape)


@lowers("aten::pixel_unshuffle", exact=True)
def pixel_unshuffle(self: Any, factor: int, *, out: Any) -> Any:
    """Space to channels."""
    *batch, c, h, w = self.shape
    x = self.reshape(*batch, c, h // factor, factor, w // factor, factor)
    n = len(batch)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return jnp.transpose(x, order).reshape(out.shape)


@lowers("aten::channel_shuffle", exact=True)
def channel_shuffle(self: Any, groups: int) -> Any:
    """Channels of the groups interleaved."""
    n, c = self.shape[:2]
    x = self.reshape(n, groups, c // groups, -1)
    return jnp.swapaxes(x, 1, 2).reshape(self.shape)


@lowers("aten::block_diag", exact=True)
def block_diag(tensors: tuple[Any, ...], *, out: Any) -> Any:
    """Matrices on the diagonal of a larger one."""
    result, row, column = jnp.zeros(out.shape, cast(tensors[0], out.dtype).dtype), 0, 0
    for t in tensors:
        block = cast(t, out.dtype)
        block = block.reshape((1,) * (2 - t.ndim) + t.shape)
        result = lax.dynamic_update_slice(result, block, (row, column))
        row, column = row + block.shape[0], column + block.shape[1]
    return result
