"""Pooling over two or three trailing dimensions, with gradients.

Windows are written as strided slices (one a window position), which XLA turns into plain loops;
only large windows use reduce_window. Indices are int64 positions in the input's flat plane.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering import handlers
from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, dtype_name, is_float, op_math
from torch_neuronx.lowering.table import lowers

# Beyond this many positions a window is no longer unrolled.
_UNROLL = 64
_ADD = "torchneuron.add_in_planes"

Ints = Sequence[int]


def _expand(values: Ints, n: int, default: Ints | None = None) -> tuple[int, ...]:
    if not values and default is not None:
        return tuple(default)
    return tuple(values) * n if len(values) == 1 else tuple(values)


class _Windows:
    """Geometry of a pooling operator over the trailing dimensions of an input."""

    def __init__(
        self, shape: Ints, out: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
    ) -> None:
        self.n = n = len(kernel)
        self.size, self.out = tuple(shape[-n:]), tuple(out[-n:])
        self.kernel, self.stride = tuple(kernel), tuple(stride)
        self.padding, self.dilation = tuple(padding), tuple(dilation)
        # What the last window needs to the right; negative where it ends before the input does.
        self.right = tuple(
            (o - 1) * s + d * (k - 1) + 1 - i - p
            for o, s, d, k, i, p in zip(
                self.out, self.stride, self.dilation, self.kernel, self.size, self.padding,
                strict=True,
            )
        )  # fmt: skip

    def padded(self, x: Any, value: Any) -> Any:
        """``x`` with exactly what the windows see."""
        lead = [(0, 0, 0)] * (x.ndim - self.n)
        edges = [(p, r, 0) for p, r in zip(self.padding, self.right, strict=True)]
        return lax.pad(x, value, lead + edges)

    def offsets(self) -> Any:
        """Positions inside a window, row-major."""
        return itertools.product(*(range(k) for k in self.kernel))

    def slice(self, padded: Any, offset: Ints) -> Any:
        """Element ``offset`` of every window."""
        lead = padded.ndim - self.n
        start = [o * d for o, d in zip(offset, self.dilation, strict=True)]
        limit = [a + (o - 1) * s + 1 for a, o, s in zip(start, self.out, self.stride, strict=True)]
        return lax.slice(
            padded,
            [0] * lead + start,
            [*padded.shape[:lead], *limit],
            [1] * lead + list(self.stride),
        )

    def unslice(self, x: Any, offset: Ints) -> Any:
        """The transpose of ``slice`` and ``padded``: values put back, zeros elsewhere."""
        lead = [(0, 0, 0)] * (x.ndim - self.n)
        edges = []
        for o, d, s, p, i, m in zip(
            offset, self.dilation, self.stride, self.padding, self.size, self.out, strict=True
        ):
            low = o * d - p
            edges.append((low, i - low - ((m - 1) * s + 1), s - 1))
        return lax.pad(x, jnp.zeros((), x.dtype), lead + edges)

    def positions(self, offset: Ints) -> np.ndarray:
        """Flat input position of element ``offset`` of every window (may lie outside)."""
        total = np.zeros((1,) * self.n, np.int64)
        for a in range(self.n):
            line = (
                np.arange(self.out[a], dtype=np.int64) * self.stride[a]
                - self.padding[a]
                + offset[a] * self.dilation[a]
            )
            shape = [1] * self.n
            shape[a] = self.out[a]
            total = total + line.reshape(shape) * math.prod(self.size[a + 1 :])
        return np.broadcast_to(total, self.out)

    def first(self) -> np.ndarray:
        """Flat position of the first element of every window that lies in the input."""
        total = np.zeros((1,) * self.n, np.int64)
        for a in range(self.n):
            line = np.arange(self.out[a], dtype=np.int64) * self.stride[a] - self.padding[a]
            d = self.dilation[a]
            line = np.where(line < 0, line + -(line // d) * d, line)
            shape = [1] * self.n
            shape[a] = self.out[a]
            total = total + line.reshape(shape) * math.prod(self.size[a + 1 :])
        return np.broadcast_to(total, self.out)


def _lowest(dtype: Any) -> Any:
    if is_float(np.dtype(dtype).name):
        return jnp.array(-jnp.inf, dtype)
    return jnp.array(False if dtype == np.bool_ else np.iinfo(dtype).min, dtype)


# --- max pooling -------------------------------------------------------------------------------


def _max_pool(x: Any, w: _Windows) -> tuple[Any, Any]:
    low = _lowest(x.dtype)
    shape = (*x.shape[: x.ndim - w.n], *w.out)
    if math.prod(w.kernel) > _UNROLL:
        return _max_pool_reduce_window(x, w, low)
    padded = w.padded(x, low)
    best = jnp.full(shape, low)
    index = jnp.broadcast_to(jnp.asarray(w.first()), shape)
    floating = is_float(dtype_name(x))
    for offset in w.offsets():
        value = w.slice(padded, offset)
        # As ATen: the first of equal values stands, NaN always wins.
        better = (value > best) | (value != value) if floating else value > best
        best = jnp.where(better, value, best)
        index = jnp.where(better, jnp.asarray(w.positions(offset)), index)
    return best, index


def _max_pool_reduce_window(x: Any, w: _Windows, low: Any) -> tuple[Any, Any]:
    plane = jnp.arange(math.prod(w.size), dtype=np.int64).reshape(w.size)
    index = jnp.broadcast_to(plane, x.shape)
    last = np.int64(np.iinfo(np.int64).max)

    def pick(a: Any, b: Any) -> Any:
        nan_a, nan_b = a[0] != a[0], b[0] != b[0]
        earlier = a[1] < b[1]
        both = jnp.where(nan_a & nan_b, ~earlier, (a[0] > b[0]) | ((a[0] == b[0]) & earlier))
        first = jnp.where(nan_a ^ nan_b, nan_a, both)
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    lead = x.ndim - w.n
    value, place = lax.reduce_window(
        (x, index),
        (low, last),
        pick,
        (1,) * lead + w.kernel,
        (1,) * lead + w.stride,
        [(0, 0)] * lead + list(zip(w.padding, w.right, strict=True)),
        None,
        (1,) * lead + w.dilation,
    )
    return value, jnp.where(place == last, jnp.asarray(w.first()), place)


def _max_pool_backward(grad: Any, indices: Any, w: _Windows, shape: Ints) -> Any:
    """Each gradient goes to the position its window chose."""
    dtype = op_math(dtype_name(grad))
    g = cast(grad, dtype)
    if g.size == 0:
        return jnp.zeros(shape, g.dtype)
    if math.prod(w.kernel) <= _UNROLL and not handlers.takes(_ADD, g):
        total = jnp.zeros(shape, g.dtype)
        zero = jnp.zeros((), g.dtype)
        for offset in w.offsets():
            hit = indices == jnp.asarray(w.positions(offset))
            total = total + w.unslice(jnp.where(hit, g, zero), offset)
        return total
    return _scatter_planes(g, indices, w.n, shape)


def _scatter_planes(g: Any, indices: Any, n: int, shape: Ints) -> Any:
    """Adds gradients at flat positions of each plane."""
    planes = math.prod(shape[: len(shape) - n])
    size = math.prod(shape[len(shape) - n :])
    rows = lax.broadcasted_iota(np.int64, (planes, g.size // max(planes, 1)), 0)
    place = indices.astype(np.int64).reshape(rows.shape)
    if handlers.takes(_ADD, g):
        results = [((planes, size), g.dtype)]
        (flat,) = handlers.call(_ADD, results, g.reshape(rows.shape), place)
        return flat.reshape(shape)
    flat = jnp.zeros((planes, size), g.dtype)
    return flat.at[rows, place].add(g.reshape(rows.shape), mode="drop").reshape(shape)


def _max_rule(n: int) -> None:
    @lowers(f"aten::max_pool{n}d_with_indices", exact=True)
    def forward(
        self: Any,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        dilation: Ints = (1,),
        ceil_mode: bool = False,
        *,
        out: Any,
    ) -> tuple[Any, Any]:
        """Largest value of each window and its flat position."""
        kernel = _expand(kernel_size, n)
        w = _Windows(
            self.shape, out[0].shape, kernel, _expand(stride, n, kernel),
            _expand(padding, n), _expand(dilation, n),
        )  # fmt: skip
        if 0 in out[0].shape:
            return jnp.zeros(out[0].shape, self.dtype), jnp.zeros(out[0].shape, np.int64)
        return _max_pool(self, w)

    @lowers(f"aten::max_pool{n}d_with_indices_backward")
    def backward(
        grad_output: Any,
        self: Any,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: Any,
    ) -> Any:
        """Gradient of max pooling."""
        kernel = _expand(kernel_size, n)
        w = _Windows(
            self.shape, grad_output.shape, kernel, _expand(stride, n, kernel),
            _expand(padding, n), _expand(dilation, n),
        )  # fmt: skip
        return _max_pool_backward(grad_output, indices, w, self.shape)


_max_rule(2)
_max_rule(3)


# --- average pooling ---------------------------------------------------------------------------


def _divisor(w: _Windows, count_include_pad: bool, divisor_override: int | None) -> np.ndarray:
    """What each window's sum is divided by."""
    if divisor_override is not None:
        return np.full((1,) * w.n, divisor_override, np.float64)
    total = np.ones((1,) * w.n, np.float64)
    for a in range(w.n):
        start = np.arange(w.out[a]) * w.stride[a] - w.padding[a]
        end = np.minimum(start + w.kernel[a], w.size[a] + w.padding[a])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, w.size[a])
        shape = [1] * w.n
        shape[a] = w.out[a]
        total = total * (end - start).reshape(shape)
    return total


def _avg_rule(n: int) -> None:
    def windows(shape: Ints, out: Ints, kernel_size: Ints, stride: Ints, padding: Ints) -> _Windows:
        kernel = _expand(kernel_size, n)
        return _Windows(
            shape, out, kernel, _expand(stride, n, kernel), _expand(padding, n), (1,) * n
        )

    @lowers(f"aten::avg_pool{n}d")
    def forward(
        self: Any,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        out: Any,
    ) -> Any:
        """Mean of each window."""
        w = windows(self.shape, out.shape, kernel_size, stride, padding)
        dtype = op_math(out.dtype)
        x = cast(self, dtype)
        if 0 in out.shape:
            return jnp.zeros(out.shape, x.dtype)
        lead = x.ndim - n
        total = lax.reduce_window(
            w.padded(x, jnp.zeros((), x.dtype)),
            jnp.zeros((), x.dtype)[()],
            lax.add,
            (1,) * lead + w.kernel,
            (1,) * lead + w.stride,
            "VALID",
        )
        return _divide(total, _divisor(w, count_include_pad, divisor_override))

    @lowers(f"aten::avg_pool{n}d_backward")
    def backward(
        grad_output: Any,
        self: Any,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
        *,
        out: Any,
    ) -> Any:
        """Each gradient shared by the window it came from."""
        w = windows(self.shape, grad_output.shape, kernel_size, stride, padding)
        g = cast(grad_output, op_math(out.dtype))
        if g.size == 0:
            return jnp.zeros(out.shape, g.dtype)
        g = _divide(g, _divisor(w, count_include_pad, divisor_override))
        lead = g.ndim - n
        edges = []
        for k, s, p, i, m in zip(w.kernel, w.stride, w.padding, w.size, w.out, strict=True):
            low = k - 1 - p
            edges.append((low, i + k - 1 - low - ((m - 1) * s + 1), s - 1))
        spread = lax.pad(g, jnp.zeros((), g.dtype), [(0, 0, 0)] * lead + edges)
        return lax.reduce_window(
            spread,
            jnp.zeros((), g.dtype)[()],
            lax.add,
            (1,) * lead + w.kernel,
            (1,) * g.ndim,
            "VALID",
        )


def _divide(x: Any, divisor: np.ndarray) -> Any:
    divisor = divisor.astype(x.dtype)
    if not is_float(dtype_name(x)):
        return lax.div(x, jnp.broadcast_to(jnp.asarray(divisor), x.shape))
    return x / jnp.asarray(divisor)


_avg_rule(2)
_avg_rule(3)


# --- adaptive pooling --------------------------------------------------------------------------


def _ranges(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """First and one past last input position of each output position."""
    i = np.arange(out)
    return i * size // out, -((-(i + 1) * size) // out)


def _cover(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n, longest) of each range, repeated past its end, and which of them count."""
    longest = int((end - start).max(initial=1))
    place = start[:, None] + np.arange(longest)
    valid = place < end[:, None]
    return np.minimum(place, np.maximum(end - 1, 0)[:, None]), valid


def _sum_ranges(x: Any, axis: int, start: np.ndarray, end: np.ndarray) -> Any:
    """Sums of ranges along ``axis``."""
    size, n = x.shape[axis], len(start)
    step = size // n if n else 0
    if (
        n
        and step * n == size
        and (start == np.arange(n) * step).all()
        and (end == start + step).all()
    ):
        shape = (*x.shape[:axis], n, step, *x.shape[axis + 1 :])
        return jnp.sum(x.reshape(shape), axis=axis + 1)
    place, valid = _cover(start, end)
    rows = jnp.take(x, jnp.asarray(place), axis=axis, mode="clip")
    mask = jnp.asarray(valid).reshape((1,) * axis + valid.shape + (1,) * (x.ndim - axis - 1))
    return jnp.sum(jnp.where(mask, rows, jnp.zeros((), x.dtype)), axis=axis + 1)


def _adaptive_counts(size: Ints, out: Ints) -> np.ndarray:
    total = np.ones((1,) * len(size))
    for a, (i, o) in enumerate(zip(size, out, strict=True)):
        start, end = _ranges(i, o)
        shape = [1] * len(size)
        shape[a] = o
        total = total * (end - start).reshape(shape)
    return total


def _adaptive_rule(n: int) -> None:
    @lowers(f"aten::_adaptive_avg_pool{n}d")
    def forward(self: Any, output_size: Ints, *, out: Any) -> Any:
        """Means over windows that divide the input as evenly as possible."""
        x = cast(self, op_math(out.dtype))
        if x.size == 0 or 0 in out.shape:
            return jnp.full(out.shape, jnp.nan if x.size == 0 else 0, x.dtype)
        size, target = x.shape[-n:], out.shape[-n:]
        for a in range(n):
            x = _sum_ranges(x, x.ndim - n + a, *_ranges(size[a], target[a]))
        return x / jnp.asarray(_adaptive_counts(size, target).astype(x.dtype))

    @lowers(f"aten::_adaptive_avg_pool{n}d_backward")
    def backward(grad_output: Any, self: Any, *, out: Any) -> Any:
        """Each gradient shared by its window."""
        g = cast(grad_output, op_math(out.dtype))
        if g.size == 0 or 0 in out.shape:
            return jnp.zeros(out.shape, g.dtype)
        size, target = out.shape[-n:], g.shape[-n:]
        g = g / jnp.asarray(_adaptive_counts(size, target).astype(g.dtype))
        for a in range(n):
            start, end = _ranges(size[a], target[a])
            axis = g.ndim - n + a
            if (start[1:] == end[:-1]).all() and len(set(end - start)) == 1:
                g = jnp.repeat(g, int(end[0] - start[0]), axis=axis)
                continue
            # The windows that hold input position i: those that end after and start before it.
            i = np.arange(size[a])
            first = np.searchsorted(end, i, side="right")
            last = np.searchsorted(start, i, side="right")
            g = _sum_ranges(g, axis, first, last)
        return g


_adaptive_rule(2)
_adaptive_rule(3)


def _adaptive_max_rule(n: int) -> None:
    @lowers(f"aten::adaptive_max_pool{n}d", exact=True)
    def forward(self: Any, output_size: Ints, *, out: Any) -> tuple[Any, Any]:
        """Largest value of each adaptive window and its flat position."""
        shape = out[0].shape
        if 0 in shape:
            return jnp.zeros(shape, self.dtype), jnp.zeros(shape, np.int64)
        x = self
        plane = np.arange(math.prod(x.shape[-n:]), dtype=np.int64).reshape(x.shape[-n:])
        index = jnp.broadcast_to(jnp.asarray(plane), x.shape)
        size = x.shape[-n:]
        # Innermost dimension first: among equal values the smallest position must stand.
        for a in reversed(range(n)):
            axis = x.ndim - n + a
            place, _ = _cover(*_ranges(size[a], shape[len(shape) - n + a]))
            x = jnp.take(x, jnp.asarray(place), axis=axis, mode="clip")
            index = jnp.take(index, jnp.asarray(place), axis=axis, mode="clip")
            # Positions past a range repeat its last one, so they never change the answer.
            best = jnp.expand_dims(jnp.argmax(x, axis=axis + 1), axis + 1)
            x = jnp.squeeze(jnp.take_along_axis(x, best, axis=axis + 1), axis + 1)
            index = jnp.squeeze(jnp.take_along_axis(index, best, axis=axis + 1), axis + 1)
        return x, index

    @lowers(f"aten::adaptive_max_pool{n}d_backward")
    def backward(grad_output: Any, self: Any, indices: Any) -> Any:
        """Each gradient goes to the position its window chose."""
        g = cast(grad_output, op_math(dtype_name(grad_output)))
        if g.size == 0:
            return jnp.zeros(self.shape, g.dtype)
        return _scatter_planes(g, indices, n, self.shape)


_adaptive_max_rule(2)
_adaptive_max_rule(3)


# --- unpooling ---------------------------------------------------------------------------------


def _unpool(x: Any, indices: Any, n: int, shape: Ints, checks: Checks) -> Any:
    planes = math.prod(shape[: len(shape) - n])
    size = math.prod(shape[len(shape) - n :])
    flat = jnp.zeros((planes, size), x.dtype)
    rows = lax.broadcasted_iota(np.int64, (planes, x.size // max(planes, 1)), 0)
    place = indices.reshape(rows.shape).astype(np.int64)
    valid = (place >= 0) & (place < size)
    checks.require(
        valid,
        place,
        "RuntimeError",
        "Found an invalid max index: {value} (output volumes are of size "
        + "x".join(map(str, shape[len(shape) - n :]))
        + ")",
    )
    place = jnp.where(valid, place, size)  # dropped
    return flat.at[rows, place].set(x.reshape(rows.shape), mode="drop").reshape(shape)


@lowers("aten::max_unpool2d", exact=True)
def max_unpool2d(self: Any, indices: Any, output_size: Ints, *, out: Any, checks: Checks) -> Any:
    """Values put back at their flat positions, zeros elsewhere."""
    return _unpool(self, indices, 2, out.shape, checks)


@lowers("aten::max_unpool3d", exact=True)
def max_unpool3d(
    self: Any,
    indices: Any,
    output_size: Ints,
    stride: Ints,
    padding: Ints,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """Values put back at their flat positions, zeros elsewhere."""
    return _unpool(self, indices, 3, out.shape, checks)
