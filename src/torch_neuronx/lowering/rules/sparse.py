"""Row numbers of sorted entries to row bounds (COO to CSR), and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.table import lowers


@lowers("aten::_convert_indices_from_coo_to_csr", exact=True)
def coo_to_csr(self: Any, size: int, out_int32: bool = False) -> Any:
    """Rows (nnz), sorted, as bounds (size + 1): where each row's entries begin, and the end."""
    return jnp.searchsorted(self, jnp.arange(size + 1, dtype=self.dtype)).astype(np.int64)


@lowers("aten::_convert_indices_from_csr_to_coo", exact=True)
def csr_to_coo(
    crow_indices: Any,
    col_indices: Any,
    out_int32: bool = False,
    transpose: bool = False,
    *,
    out: Any,
) -> Any:
    """Bounds (*batch, rows + 1) and columns (*batch, nnz) as indices (batch dims + 2, nnz in all).

    ``transpose`` puts columns before rows.
    """
    *batch, nnz = col_indices.shape
    bounds = crow_indices.reshape(-1, crow_indices.shape[-1]).astype(np.int64)
    place = jnp.arange(nnz, dtype=np.int64)
    rows = jax.vmap(lambda b: jnp.searchsorted(b[1:], place, side="right"))(bounds)
    rows = rows.astype(np.int64).reshape(-1)
    columns = col_indices.reshape(-1).astype(np.int64)
    leading = jnp.unravel_index(jnp.repeat(jnp.arange(bounds.shape[0]), nnz), batch or (1,))
    parts = [axis.astype(np.int64) for axis in leading] if batch else []
    parts += [columns, rows] if transpose else [rows, columns]
    return jnp.stack(parts).reshape(out.shape)
