"""Matrix products of groups whose sizes are data, as in a mixture of experts.

``offs`` (G) holds where each group ends along the grouped dimension; the first begins at 0. The
groups are cut into tiles of a fixed number of rows, at most ceil(rows / tile) + G of them, and a
loop multiplies tile by tile: the sizes never leave the device, and no shape depends on them.
Letters: M, N rows and columns of the result, K contracted, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast
from torch_neuronx.lowering.rules.matmul import product
from torch_neuronx.lowering.table import lowers

_LARGEST_TILE = 128


def _tile(rows: int, groups: int) -> int:
    """Rows of a tile: about a group's share, a multiple of 8."""
    return max(8, min(_LARGEST_TILE, -(-rows // (8 * max(groups, 1))) * 8))


def _tiles(
    offs: Any, rows: int, size: int, start: Any, step: Callable[[Any, Any, Any, Any], Any]
) -> Any:
    """Fold ``step(result, group, first, live)`` over the tiles of all groups.

    A tile is the rows first .. first + size, of which those of the mask ``live`` (size) are the
    group's.
    """
    ends = jnp.clip(offs.astype(np.int64), 0, rows)
    begins = jnp.concatenate([jnp.zeros((1,), np.int64), ends[:-1]])
    counts = -(-jnp.maximum(ends - begins, 0) // size)
    last = jnp.cumsum(counts)

    def body(i: Any, result: Any) -> Any:
        group = jnp.searchsorted(last, i, side="right").astype(np.int64)
        first = begins[group] + (i - (last[group] - counts[group])) * size
        live = first + jnp.arange(size, dtype=np.int64) < ends[group]
        return step(result, group, first, live)

    return lax.fori_loop(np.int64(0), last[-1], body, start)


def _pick(x: Any, group: Any) -> Any:
    return lax.dynamic_index_in_dim(x, group, keepdims=False)


def _by_rows(a: Any, b: Any, offs: Any) -> Any:
    """a (M, K), b (G, K, N): rows of group g times b[g]. Rows of no group are zero."""
    rows, size = a.shape[0], _tile(a.shape[0], b.shape[0])
    padded = jnp.pad(a, ((0, size), (0, 0)))
    dtype = product(a[:0], b[0]).dtype if b.shape[0] else a.dtype

    def step(result: Any, group: Any, first: Any, live: Any) -> Any:
        part = product(lax.dynamic_slice_in_dim(padded, first, size), _pick(b, group))
        old = lax.dynamic_slice_in_dim(result, first, size)
        kept = jnp.where(live[:, None], part, old)
        return lax.dynamic_update_slice_in_dim(result, kept, first, 0)

    start = jnp.zeros((rows + size, b.shape[2]), dtype)
    return _tiles(offs, rows, size, start, step)[:rows]


def _by_contraction(a: Any, b: Any, offs: Any) -> Any:
    """a (M, K), b (K, N): for each group of K a product (G, M, N)."""
    size = _tile(a.shape[1], offs.shape[0])
    left, right = jnp.pad(a, ((0, 0), (0, size))), jnp.pad(b, ((0, size), (0, 0)))
    dtype = product(a[:0], b).dtype

    def step(result: Any, group: Any, first: Any, live: Any) -> Any:
        x = lax.dynamic_slice_in_dim(left, first, size, axis=1)
        y = lax.dynamic_slice_in_dim(right, first, size)
        part = product(
            jnp.where(live[None, :], x, jnp.zeros((), x.dtype)),
            jnp.where(live[:, None], y, jnp.zeros((), y.dtype)),
        )
        return lax.dynamic_update_index_in_dim(result, _pick(result, group) + part, group, 0)

    start = jnp.zeros((offs.shape[0], a.shape[0], b.shape[1]), dtype)
    return _tiles(offs, a.shape[1], size, start, step)


def _grouped(a: Any, b: Any, offs: Any) -> Any:
    """The product for the ranks that the operands have."""
    if a.ndim == 3 and b.ndim == 3:
        return product(a, b, 1)
    if a.ndim == 2 and b.ndim == 3:
        return _by_rows(a, b, offs)
    if a.ndim == 3:  # the columns of b are grouped: the same, turned over
        return _by_rows(b.T, a.transpose(0, 2, 1), offs).T
    return _by_contraction(a, b, offs)


@lowers("aten::_grouped_mm")
def grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: str | None = None
) -> Any:
    """(M, K) x (G, K, N), (G, M, K) x (K, N), (M, K) x (K, N) or (G, M, K) x (G, K, N)."""
    return _grouped(self, mat2, offs)


def _scaled(self: Any, mat2: Any, scale_a: Any, scale_b: Any, offs: Any) -> Any:
    a, b = cast(self, "float32"), cast(mat2, "float32")
    scale_a, scale_b = cast(scale_a, "float32"), cast(scale_b, "float32")
    if self.ndim == 2 and mat2.ndim == 2:  # a scale for each row and column of each group
        groups = offs.shape[0]
        rows, columns = scale_a.reshape(groups, -1), scale_b.reshape(groups, -1)
        return _grouped(a, b, offs) * rows[:, :, None] * columns[:, None, :]
    return _grouped(a * scale_a[..., :, None], b * scale_b[..., None, :], offs)


@lowers("aten::_scaled_grouped_mm")
def scaled_grouped_mm(
    self: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any = None,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: str | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """_grouped_mm of fp8 matrices with one scale for each row of ``self``, column of ``mat2``."""
    _check_scales(scale_a, scale_b)
    return _scaled(self, mat2, scale_a, scale_b, offs)


@lowers("aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(
    self: Any,
    mat2: Any,
    scale_a: tuple[Any, ...],
    recipe_a: tuple[int, ...],
    swizzle_a: tuple[int, ...],
    scale_b: tuple[Any, ...],
    recipe_b: tuple[int, ...],
    swizzle_b: tuple[int, ...],
    offs: Any = None,
    bias: Any = None,
    out_dtype: str | None = None,
    contraction_dim: tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> Any:
    """The same with the kind of scaling named; row-wise is the one that has a rule."""
    _check_scales(scale_a[0], scale_b[0])
    return _scaled(self, mat2, scale_a[0], scale_b[0], offs)


def _check_scales(scale_a: Any, scale_b: Any) -> None:
    if scale_a.dtype != np.float32 or scale_b.dtype != np.float32:
        raise ValueError(
            f"expected float32 scales, one for each row, got {scale_a.dtype} and {scale_b.dtype}; "
            "block scales (MXFP8) have no rule"
        )
