"""Concrete sizes of a graph with symbolic ones (decision D13)."""

from __future__ import annotations

from typing import Any

import sympy
import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_number(value: Any) -> bool:
    """Whether a node's value is a number, known or symbolic, and not a tensor."""
    return isinstance(value, (bool, int, float, *SYMBOLIC))


def symbols_told_by_data(value: Any, *, offsets: bool = True) -> list[sympy.Symbol]:
    """The unbacked symbols of a tensor, number or several: only the data can tell their values.

    ``offsets``: also those of where a tensor starts in its storage.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if isinstance(value, (list, tuple)):
        return [s for v in value for s in symbols_told_by_data(v, offsets=offsets)]
    if isinstance(value, torch.Tensor) and not offsets:
        return symbols_told_by_data([*value.shape, *value.stride()])
    return sorted(free_unbacked_symbols(value), key=str)


def symbol_told_by_data(number: Any) -> sympy.Symbol | None:
    """The unbacked symbol that a number is, or None; ``2*u0`` is none."""
    if not isinstance(number, SYMBOLIC) or not number.node.expr.is_Symbol:
        return None
    return number.node.expr if depends_on_data(number) else None


def known_number(number: Any) -> Any:
    """The value of a number without symbols, which a symbolic one is once all are replaced."""
    if not isinstance(number, SYMBOLIC):
        return number
    expression = number.node.expr
    return None if expression.free_symbols else _python(number, expression)


def _python(number: Any, expression: Any) -> bool | int | float:
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)]
    return kind(expression)  # type: ignore[no-any-return]


def depends_on_data(value: Any) -> bool:
    """Whether a value has an unbacked symbol, that is, one whose value only the data can tell."""
    return bool(symbols_told_by_data(value))


def examples(gm: torch.fx.GraphModule) -> list[Any]:
    """What a graph's inputs were traced with; None for those whose values executables read."""
    return [
        None if n.meta.get("operand") else n.meta.get("val")
        for n in gm.graph.nodes
        if n.op == "placeholder"
    ]


class Sizes:
    """Values of a graph's symbols, read off one call's inputs.

    Whole expressions, too: ``u1`` may be known only by an input whose size is ``2*u1``.

    ``examples`` are what the graph's placeholders were traced with (None: it tells nothing),
    ``values`` the call's inputs.
    """

    def __init__(self, examples: list[Any], values: list[Any]) -> None:
        self._symbols: dict[Any, Any] = {}
        for example, value in zip(examples, values, strict=True):
            if value is None or example is None:
                continue  # an input that the device does not read, or an operand
            if isinstance(example, torch.Tensor):
                self._bind(example.shape, value.shape)
                self._bind(example.stride(), value.stride())
                self._bind([example.storage_offset()], [value.storage_offset()])
            else:
                self._bind([example], [value])

    def _bind(self, symbolic: Any, concrete: Any) -> None:
        for s, c in zip(symbolic, concrete, strict=True):
            if isinstance(s, SYMBOLIC) and s.node.expr.free_symbols:
                self._symbols.setdefault(s.node.expr, sympy.sympify(c))

    def number(self, x: Any) -> bool | int | float:
        """A Python number, or a symbolic one with its symbols replaced.

        Raises:
            ValueError: it depends on data (an unbacked symbol).
        """
        if not isinstance(x, SYMBOLIC):
            return x
        expression = x.node.expr.xreplace(self._symbols)
        if expression.free_symbols:
            raise ValueError(
                f"the size {x.node.expr} depends on data ({expression.free_symbols} have no value "
                "in the graph's inputs)"
            )
        return _python(x, expression)

    def value(self, x: Any) -> int:
        """``number`` of a size, stride or offset."""
        return int(self.number(x))

    def values(self, xs: Any) -> tuple[int, ...]:
        """``value`` of each."""
        return tuple(self.value(x) for x in xs)
