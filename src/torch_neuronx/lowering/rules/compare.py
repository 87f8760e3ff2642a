"""Comparisons and logic. Exact: operands are compared in their common dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

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


@lowers(
    "aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor", exact=True
)
def isin(elements: Any, tests: Any, assume_unique: bool, invert: bool) -> Any:
    """Whether each element is among the tests, by binary search in the sorted tests."""
    elements, tests = promote(elements, tests)
    tests = tests.reshape(-1)
    if tests.size == 0:
        found = jnp.zeros(elements.shape, bool)
    else:
        tests = lax.sort(tests)
        place = jnp.searchsorted(tests, elements)
        found = jnp.take(tests, place, mode="clip") == elements
    return ~found if invert else found
