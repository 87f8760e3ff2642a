"""Sampling at real-valued positions of a grid, in two and three dimensions, with gradients.

Positions in [-1, 1] become input coordinates, which the padding mode brings inside; then a few
neighbours are weighted. Gradients of the weights and values are JAX's own; those of the
coordinates follow PyTorch (zero where a coordinate was clipped).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.table import lowers

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _unnormalize(x: Any, size: int, align_corners: bool) -> tuple[Any, float]:
    """Input coordinates and how fast they change."""
    if align_corners:
        return (x + 1) / 2 * (size - 1), (size - 1) / 2
    return ((x + 1) * size - 1) / 2, size / 2


def _clip(x: Any, size: int, n: int) -> tuple[Any, Any]:
    """Clipped coordinates, and 1 where they were strictly inside.

    nan becomes the first place in two dimensions and the last in three, as in CPU's kernels.
    """
    inside = (x > 0) & (x < size - 1)
    lost = jnp.full((), 0 if n == 2 else size - 1, x.dtype)
    clipped = jnp.minimum(jnp.maximum(x, 0), size - 1)
    return jnp.where(x == x, clipped, lost), inside.astype(x.dtype)


def _reflect(x: Any, size: int, align_corners: bool) -> tuple[Any, Any]:
    """Coordinates reflected until they are inside, and the sign of the last direction."""
    low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
    if low == high:
        return jnp.zeros_like(x), jnp.zeros_like(x)
    start, span = low / 2, (high - low) / 2
    shifted = x - start
    sign = jnp.where(shifted < 0, -1.0, 1.0).astype(x.dtype)
    distance = jnp.abs(shifted)
    extra = lax.rem(distance, jnp.full_like(distance, span))
    even = jnp.floor(distance / span) % 2 == 0
    return (
        jnp.where(even, extra + start, span - extra + start),
        jnp.where(even, sign, -sign),
    )


def _inside(x: Any, size: int, padding: int, align_corners: bool, n: int) -> tuple[Any, Any]:
    """Coordinates as the padding mode has them in ``n`` dimensions, and their slopes."""
    slope = jnp.ones_like(x)
    if padding == _BORDER:
        x, slope = _clip(x, size, n)
    elif padding == _REFLECTION:
        x, turned = _reflect(x, size, align_corners)
        x, slope = _clip(x, size, n)
        slope = slope * turned
    # Coordinates that no int32 holds, and nan, lie outside.
    good = (jnp.abs(x) < 2**31 - 2) & (x == x)
    return jnp.where(good, x, jnp.asarray(-100, x.dtype)), slope


def _gather(x: Any, places: Sequence[Any]) -> Any:
    """Elements of ``x`` (N, C, sizes) at int places (N, ...), zero outside: (N, C, ...)."""
    sizes = x.shape[2:]
    flat = x.reshape(*x.shape[:2], -1)
    valid = jnp.ones(places[0].shape, bool)
    index = jnp.zeros(places[0].shape, np.int64)
    for place, size in zip(places, sizes, strict=True):
        valid &= (place >= 0) & (place < size)
        index = index * size + jnp.clip(place, 0, size - 1)
    rows = index.reshape(index.shape[0], 1, -1)
    found = jnp.take_along_axis(flat, rows, axis=2, mode="promise_in_bounds")
    found = found.reshape(*x.shape[:2], *places[0].shape[1:])
    return jnp.where(valid[:, None], found, jnp.zeros((), x.dtype))


def _linear(x: Any, coordinates: Sequence[Any]) -> Any:
    low = [lax.stop_gradient(jnp.floor(c)) for c in coordinates]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(low)):
        weight: Any = 1
        for c, base, side in zip(coordinates, low, corner, strict=True):
            weight = weight * ((c - base) if side else (base + 1 - c))
        places = [
            jnp.where(b == b, b, jnp.full((), -100, b.dtype)).astype(np.int64) + side
            for b, side in zip(low, corner, strict=True)
        ]
        part = _gather(x, places) * weight[:, None]
        total = part if total is None else total + part
    return total


def _round(x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN).astype(np.int64)


def _cubic_weights(t: Any) -> list[Any]:
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(x: Any, coordinates: Sequence[Any], padding: int, align_corners: bool) -> Any:
    low = [lax.stop_gradient(jnp.floor(c)) for c in coordinates]
    weights = [_cubic_weights(c - b) for c, b in zip(coordinates, low, strict=True)]

    def place(a: int, tap: int) -> Any:
        at, _ = _inside(low[a] + (tap - 1), x.shape[2 + a], padding, align_corners, 2)
        return at.astype(np.int64)

    total: Any = None
    for row in range(4):
        line: Any = None
        for column in range(4):
            part = _gather(x, [place(0, row), place(1, column)]) * weights[1][column][:, None]
            line = part if line is None else line + part
        line = line * weights[0][row][:, None]
        total = line if total is None else total + line
    return total


def _coordinates(
    shape: Sequence[int], grid: Any, mode: int, padding: int, align_corners: bool
) -> tuple[list[Any], list[Any]]:
    """Coordinates for each spatial dimension, outermost first, and their slopes."""
    sizes = shape[2:]
    places, slopes = [], []
    for a, size in enumerate(sizes):
        x, rate = _unnormalize(grid[..., len(sizes) - 1 - a], size, align_corners)
        slope: Any = rate
        if mode != _BICUBIC:
            raw = x
            x, inner = _inside(x, size, padding, align_corners, len(sizes))
            if mode == _BILINEAR and padding == _ZEROS and len(sizes) == 2:
                # CPU weighs the zeros outside: 0 * nan.
                x = jnp.where(jnp.isfinite(raw), x, jnp.full((), np.nan, x.dtype))
            slope = slope * inner
        else:
            slope = jnp.full_like(x, slope)
        places.append(x)
        slopes.append(slope)
    return places, slopes


def _sample(x: Any, places: Sequence[Any], mode: int, padding: int, align_corners: bool) -> Any:
    if mode == _NEAREST:
        return _gather(x, [_round(p) for p in places])
    if mode == _BICUBIC:
        return _cubic(x, places, padding, align_corners)
    return _linear(x, places)


def _register(n: int) -> None:
    @lowers(f"aten::grid_sampler_{n}d")
    def forward(
        input: Any,
        grid: Any,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        *,
        out: Any,
    ) -> Any:
        """``input`` (N, C, sizes) sampled at ``grid`` (N, sizes out, dimensions)."""
        dtype = op_math(out.dtype)
        x, g = cast(input, dtype), cast(grid, dtype)
        if 0 in out.shape:
            return jnp.zeros(out.shape, x.dtype)
        places, _ = _coordinates(x.shape, g, interpolation_mode, padding_mode, align_corners)
        return _sample(x, places, interpolation_mode, padding_mode, align_corners)

    @lowers(f"aten::grid_sampler_{n}d_backward")
    def backward(
        grad_output: Any,
        input: Any,
        grid: Any,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[Any, Any]:
        """Gradients of the input and of the grid."""
        dtype = op_math(dtype_name(input))
        x, g, grad = (cast(a, dtype) for a in (input, grid, grad_output))
        if 0 in (x.size, g.size):
            return jnp.zeros_like(x) if output_mask[0] else None, jnp.zeros_like(g)
        places, slopes = _coordinates(x.shape, g, interpolation_mode, padding_mode, align_corners)

        def sample(x: Any, places: Any) -> Any:
            return _sample(x, places, interpolation_mode, padding_mode, align_corners)

        if interpolation_mode == _NEAREST:
            grads = jax.linear_transpose(lambda a: sample(a, places), x)(grad)[0], places
            grad_grid = jnp.zeros_like(g)
        else:
            grads = jax.vjp(sample, x, places)[1](grad)
            moved = [d * s for d, s in zip(grads[1], slopes, strict=True)]
            grad_grid = jnp.stack(moved[::-1], axis=-1)
        return grads[0] if output_mask[0] else None, grad_grid


_register(2)
_register(3)
