"""Comparisons and logic. Exact: operands are compared in their common dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.dtypes import promote
from torch_neuronx.lowering.table import lowers

_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_LOGICAL: dict[str, Callable[..., Any]] = {
    "and": jnp.logical_and,
    "or": jnp.logical_or,
    "xor": jnp.logical_xor,
}


def _compare(name: str, function: Callable[..., Any]) -> None:
    @lowers(f"aten::{name}.Tensor", f"aten::{name}.Scalar", exact=True)
    def rule(self: Any, other: Any) -> Any:
        return function(*promote(self, other))


def _logical(name: str, function: Callable[..., Any]) -> None:
    @lowers(f"aten::logical_{name}", exact=True)
    def rule(self: Any, other: Any) -> Any:
        return function(self != 0, other != 0)


for _name, _function in _COMPARE.items():
    _compare(_name, _function)
for _name, _function in _LOGICAL.items():
    _logical(_name, _function)


