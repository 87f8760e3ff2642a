"""The table and its decorator.

A rule is a function on JAX arrays, named by the *functional* overload; in-place and ``out=``
overloads use the rule of their functional form. Arguments come positionally in the schema's
order, defaults filled in:

* tensors as arrays, ``Tensor?`` as array or None, ``Tensor[]`` as a tuple;
* ``Scalar`` and ``float`` arguments as 0-d arrays, or Python numbers where a compiled graph has a
  constant, unless the rule lists them in ``static``: then always Python numbers;
* ``int``, ``bool``, ``int[]``, ``str``, dtype (a name such as ``"float32"``) as static Python
  values, unless the rule lists an int in ``operand``: then as a 0-d int64 array. Those that it
  lists in ``graph_operand`` decide the results' shape, and come as arrays only from compiled
  graphs, where that shape is known without them;
* device, layout, pin_memory and memory_format arguments are passed as None.

A rule that wants to know what PyTorch's meta kernel says of its results declares the keyword
``out``: one ``Array`` (``out.dtype``, ``out.shape``), or a tuple of them if it has several results.
The driver casts results to those dtypes and refuses other shapes. ``checks`` receives the index
checks of decision D10, ``rng`` the random stream of decision D9.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """One entry of the table."""

    overload: str
    function: Callable[..., Any]
    static: frozenset[str]  # Scalar/float arguments that are static
    static_one: frozenset[str]  # Scalar arguments that are static when they equal 1
    operand: frozenset[str]  # int arguments that are operands
    graph_operand: frozenset[str]  # int arguments that are operands in compiled graphs alone
    mutates: tuple[str, ...]  # arguments mutated although the schema does not say so
    exact: bool  # moves or compares values: float64 needs no conversion
    ffi: bool  # needs the plugin's FFI handlers (decision D1)
    wants: frozenset[str]  # subset of {"out", "checks", "rng"}
    selects: Callable[..., bool]  # whether, with these arguments, it is exact after all

    def keeps_float64(self, args: list[Any]) -> bool:
        """Whether float64 operands need no conversion (decision D6)."""
        return self.exact or self.selects(*args)


RULES: dict[str, Rule] = {}


def lowers(
    *overloads: str,
    static: tuple[str, ...] = (),
    static_one: tuple[str, ...] = (),
    operand: tuple[str, ...] = (),
    graph_operand: tuple[str, ...] = (),
    mutates: tuple[str, ...] = (),
    exact: bool = False,
    ffi: bool = False,
    selects: Callable[..., bool] = lambda *_: False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function on arrays as the rule of the named overloads."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        keywords = {
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        }
        unknown = keywords - {"out", "checks", "rng"}
        if unknown:
            raise TypeError(f"rule of {overloads[0]}: unknown keyword {sorted(unknown)}")
        for overload in overloads:
            if overload in RULES:
                raise ValueError(f"two rules for {overload}")
            RULES[overload] = Rule(
                overload,
                function,
                frozenset(static),
                frozenset(static_one),
                frozenset(operand),
                frozenset(graph_operand),
                mutates,
                exact,
                ffi,
                frozenset(keywords),
                selects,
            )
        return function

    return register


def load_rules() -> dict[str, Rule]:
    """Import every rule file once and return the table."""
    import importlib
    import pkgutil

    from torch_neuronx.lowering import rules

    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return RULES
