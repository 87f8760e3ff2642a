"""Reading a strided view out of a buffer, and writing one back.

A view (sizes, strides, offset) over a row-major buffer becomes, by the first that fits,

* a reshape or transpose, when it covers the whole buffer;
* a (dynamic) slice of the buffer's own dimensions, when it is a box of them;
* a slice of the flat buffer, padded and reshaped, when its strides nest;
* a gather of computed positions.

Writing is the inverse. The offset may be an operand, so views that differ only in it share an
executable (decision D4).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import np_dtype
from torch_neuronx.lowering.layout import transposed
from torch_neuronx.lowering.program import Array, View


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Contiguous strides of ``shape``, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def bitcast_flat(flat: Any, dtype: str) -> Any:
    """A flat array reinterpreted as another dtype, as ``Tensor.view(dtype)`` does."""
    have, want = flat.dtype, np_dtype(dtype)
    if have == want:
        return flat
    if have == np.bool_:
        flat, have = flat.astype(np.uint8), np.dtype(np.uint8)
    if jnp.issubdtype(have, jnp.complexfloating):
        flat = jnp.stack([flat.real, flat.imag], axis=-1).reshape(-1)
        have = flat.dtype
    if want == np.bool_:
        return bitcast_flat(flat, "uint8") != 0
    if jnp.issubdtype(want, jnp.complexfloating):
        half = "float32" if want == np.complex64 else "float64"
        pairs = bitcast_flat(flat, half).reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    if have.itemsize < want.itemsize:
        flat = flat.reshape(-1, want.itemsize // have.itemsize)
    return lax.bitcast_convert_type(flat, want).reshape(-1)


def _box(shape: tuple[int, ...], view: View) -> list[int] | None:
    """For each view dimension the buffer dimension it walks (-1: broadcast or size 1)."""
    base = row_major(shape)
    used: set[int] = set()
    dims: list[int] = []
    for size, stride in zip(view.sizes, view.strides, strict=True):
        if size == 1 or stride == 0:
            dims.append(-1)
            continue
        for d, s in enumerate(base):
            if s == stride and shape[d] >= size and shape[d] > 1 and d not in used:
                used.add(d)
                dims.append(d)
                break
        else:
            return None
    return dims


def _static_box_fits(shape: tuple[int, ...], view: View, dims: list[int]) -> bool:
    if view.offset is None:
        return view.box
    rest = view.offset
    sizes = [1] * len(shape)
    for d, size in zip(dims, view.sizes, strict=True):
        if d >= 0:
            sizes[d] = size
    for n, s, have in zip(sizes, row_major(shape), shape, strict=True):
        start, rest = divmod(rest, s) if have else (0, rest)
        if start + n > have:
            return False
    return True


def _coordinates(shape: tuple[int, ...], offset: Any) -> list[Any]:
    """Start of a box in each buffer dimension."""
    starts: list[Any] = []
    for s, have in zip(row_major(shape), shape, strict=True):
        if isinstance(offset, int):
            starts.append(offset // s % max(have, 1))
        else:  # never negative, so truncating division is exact and cheaper
            quotient = lax.div(offset, jnp.int64(s))
            starts.append(lax.rem(quotient, jnp.int64(max(have, 1))))
    return starts


def _covers(shape: tuple[int, ...], view: View) -> bool:
    return math.prod(view.sizes) == math.prod(shape) and not any(
        st == 0 and sz > 1 for sz, st in zip(view.sizes, view.strides, strict=True)
    )


def _dense_order(view: View) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost when the view is dense, else None."""
    live = [i for i, n in enumerate(view.sizes) if n != 1]
    order = sorted(live, key=lambda i: -view.strides[i])
    expected = 1
    for i in reversed(order):
        if view.strides[i] != expected:
            return None
        expected *= view.sizes[i]
    ones = [i for i, n in enumerate(view.sizes) if n == 1]
    return tuple(order + ones)


def _positions(view: View, offset: Any) -> Any:
    """Flat positions of every element, shaped like the view."""
    total = jnp.asarray(offset, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(view.sizes, view.strides, strict=True)):
        if stride == 0 or size == 1:
            continue
        shape = [1] * len(view.sizes)
        shape[axis] = size
        total = total + (jnp.arange(size, dtype=np.int64) * stride).reshape(shape)
    return jnp.broadcast_to(total, view.sizes)


def _read_nested(flat: Any, view: View, offset: Any) -> Any | None:
    """Slice, pad and reshape when each stride is a multiple of the extent inside it."""
    live = [i for i, (n, s) in enumerate(zip(view.sizes, view.strides, strict=True)) if n > 1 and s]
    order = sorted(live, key=lambda i: -view.strides[i])
    if not order:
        seg = lax.dynamic_slice(flat, (offset,), (1,))
        return jnp.broadcast_to(seg.reshape([1] * len(view.sizes)), view.sizes)
    for outer, inner in itertools.pairwise(order):
        s_outer, s_inner = view.strides[outer], view.strides[inner]
        if s_outer % s_inner or s_outer < s_inner * view.sizes[inner]:
            return None
    span = 1 + sum((view.sizes[i] - 1) * view.strides[i] for i in order)
    x = (
        lax.dynamic_slice(flat, (offset,), (span,))
        if not isinstance(offset, int)
        else (lax.slice(flat, (offset,), (offset + span,)))
    )
    full = view.sizes[order[0]] * view.strides[order[0]]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, full - span, 0)])
    dims: list[int] = []
    for n, i in enumerate(order):
        # After the reshape, axis n walks this stride and the last axis what is inside it.
        inner = view.strides[order[n + 1]] * 1 if n + 1 < len(order) else 1
        extent = view.strides[i] // inner
        x = x.reshape(*dims, -1, extent * inner)
        dims.append(view.sizes[i])
        x = lax.slice_in_dim(x, 0, view.sizes[i], axis=n)
        if n + 1 < len(order):
            keep = view.sizes[order[n + 1]] * inner
            x = lax.slice_in_dim(x, 0, keep, axis=n + 1)
    x = x[..., 0]
    return _arrange(x, order, view)


def _arrange(x: Any, order: list[int] | tuple[int, ...], view: View) -> Any:
    """From axes in ``order`` to the view's own order, with size-1 and broadcast dimensions."""
    ranked = sorted(order)
    x = jnp.transpose(x, [list(order).index(i) for i in ranked]) if len(ranked) > 1 else x
    shape = [view.sizes[i] if i in ranked else 1 for i in range(len(view.sizes))]
    return jnp.broadcast_to(x.reshape(shape), view.sizes)


def read(buffer: Any, spec: Array, view: View, offset: Any) -> Any:
    """The tensor ``view`` sees in ``buffer`` (shaped ``spec.shape``), as an array of its sizes.

    ``offset`` is a Python int or a 0-d int64 array, in elements of the view's dtype.
    """
    if math.prod(view.sizes) == 0:
        return jnp.zeros(view.sizes, np_dtype(view.dtype))
    shape = spec.shape
    if view.dtype != spec.dtype:
        buffer = bitcast_flat(buffer.reshape(-1), view.dtype)
        shape = buffer.shape
    if _covers(shape, view):
        order = _dense_order(view)
        if order is not None:
            x = buffer.reshape([view.sizes[i] for i in order])
            back = tuple(map(int, np.argsort(order)))
            return transposed(x, back) if order != tuple(sorted(order)) else x
    dims = _box(shape, view)
    if dims is not None and _static_box_fits(shape, view, dims):
        sizes = [1] * len(shape)
        for d, size in zip(dims, view.sizes, strict=True):
            if d >= 0:
                sizes[d] = size
        starts = _coordinates(shape, offset)
        if isinstance(offset, int):
            x = lax.slice(buffer, starts, [a + n for a, n in zip(starts, sizes, strict=True)])
        else:
            x = lax.dynamic_slice(buffer, starts, sizes)
        walked = sorted((d, i) for i, d in enumerate(dims) if d >= 0)
        x = x.reshape([shape_n for d, shape_n in enumerate(sizes) if d in dict(walked)])
        return _arrange(x, [i for _, i in walked], view)
    flat = buffer.reshape(-1)
    x = _read_nested(flat, view, offset)
    if x is not None:
        return x
    return jnp.take(flat, _positions(view, offset), mode="clip")


def write(buffer: Any, spec: Array, view: View, offset: Any, value: Any) -> Any:
    """``buffer`` with ``value`` (the view's sizes and dtype) written where ``view`` looks.

    Of several writes to one element of an expanded view, the last that changes it stays. The view
    must not overlap itself otherwise. The result has the dtype and shape of ``spec``.
    """
    if math.prod(view.sizes) == 0:
        return buffer
    if view.dtype != spec.dtype:
        whole = bitcast_flat(buffer.reshape(-1), view.dtype)
        inner = Array(view.dtype, tuple(whole.shape))
        changed = write(whole, inner, view, offset, value)
        return bitcast_flat(changed.reshape(-1), spec.dtype).reshape(spec.shape)
    if _covers(spec.shape, view):
        order = _dense_order(view)
        if order is not None:
            return jnp.transpose(value, order).reshape(spec.shape)
    if any(st == 0 and n > 1 for n, st in zip(view.sizes, view.strides, strict=True)):
        value, view = _settle(value, read(buffer, spec, view, offset), view)
        return write(buffer, spec, view, offset, value)
    dims = _box(spec.shape, view)
    if dims is not None and _static_box_fits(spec.shape, view, dims):
        sizes = [1] * len(spec.shape)
        for d, size in zip(dims, view.sizes, strict=True):
            if d >= 0:
                sizes[d] = size
        walked = [i for _, i in sorted((d, i) for i, d in enumerate(dims) if d >= 0)]
        rest = [i for i in range(len(view.sizes)) if i not in walked]
        x = jnp.transpose(value, walked + rest).reshape(sizes)
        return lax.dynamic_update_slice(buffer, x, _coordinates(spec.shape, offset))
    flat = buffer.reshape(-1)
    if view.strides == row_major(view.sizes):
        flat = lax.dynamic_update_slice(flat, value.reshape(-1), (offset,))
    else:
        places = _positions(view, offset).reshape(-1)
        flat = flat.at[places].set(value.reshape(-1), mode="promise_in_bounds", unique_indices=True)
    return flat.reshape(spec.shape)


def _settle(value: Any, old: Any, view: View) -> tuple[Any, View]:
    """One value for each element that an expanded ``view`` shows several times, and its view.

    A fill of a part of the view (``masked_fill_``) keeps the rest, which is the same memory: what
    was there gives way to what is written.
    """
    shown = [i for i, n in enumerate(view.sizes) if view.strides[i] == 0 and n > 1]
    kept = [i for i in range(len(view.sizes)) if i not in shown]

    def last(x: Any) -> Any:
        return jnp.transpose(x, kept + shown).reshape(*(view.sizes[i] for i in kept), -1)[..., ::-1]

    value, old = last(value), last(old)
    changed = value != old
    if jnp.issubdtype(value.dtype, jnp.inexact):
        changed &= ~(jnp.isnan(value) & jnp.isnan(old))
    first = jnp.argmax(changed, axis=-1, keepdims=True)  # the last write where nothing changed
    sizes = tuple(1 if i in shown else n for i, n in enumerate(view.sizes))
    return jnp.take_along_axis(value, first, axis=-1).reshape(sizes), dataclasses.replace(
        view, sizes=sizes
    )
