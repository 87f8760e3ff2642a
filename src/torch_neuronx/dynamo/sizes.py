"""Concrete sizes of a graph with symbolic ones (decision D13)."""

from __future__ import annotations

from typing import Any

import sympy
import torch


class Sizes:
    """Values of a graph's symbols, read off one call's inputs.

    Raises:
        ValueError: a size depends on data (an unbacked symbol).
    """

    def __init__(self, examples: list[Any], values: list[Any]) -> None:
        self._symbols: dict[Any, sympy.Integer] = {}
        for example, value in zip(examples, values, strict=True):
            if isinstance(example, torch.Tensor):
                self._bind(example.shape, value.shape)
                self._bind(example.stride(), value.stride())
                self._bind([example.storage_offset()], [value.storage_offset()])
            else:
                self._bind([example], [value])

    def _bind(self, symbolic: Any, concrete: Any) -> None:
        for s, c in zip(symbolic, concrete, strict=True):
            if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol:
                self._symbols.setdefault(s.node.expr, sympy.Integer(int(c)))

    def value(self, x: Any) -> int:
        """An int, or a SymInt with its symbols replaced."""
        if not isinstance(x, torch.SymInt):
            return int(x)
        known = x.node.maybe_as_int()
        if known is not None:
            return int(known)
        expression = x.node.expr.xreplace(self._symbols)
        if not expression.is_number:
            raise ValueError(
                f"the size {x.node.expr} depends on data ({expression.free_symbols} have no value "
                "in the graph's inputs)"
            )
        return int(expression)

    def values(self, xs: Any) -> tuple[int, ...]:
        """``value`` of each."""
        return tuple(self.value(x) for x in xs)
