"""Copies, casts and conjugation. The driver casts to the result's dtype."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.table import lowers


@lowers("aten::clone", "aten::_to_copy", exact=True)
def clone(self: Any, *plumbing: Any) -> Any:
    """A copy, perhaps of another dtype."""
    return self


@lowers("aten::copy", exact=True)
def copy(self: Any, src: Any, non_blocking: bool, *, out: Any) -> Any:
    """``src`` broadcast to the shape of ``self``."""
    return jnp.broadcast_to(src, out.shape)


@lowers("aten::_conj", "aten::_conj_copy", "aten::_conj_physical", exact=True)
def conj(self: Any) -> Any:
    """Complex conjugate; reals stay."""
    return jnp.conj(self) if jnp.issubdtype(self.dtype, jnp.complexfloating) else self
