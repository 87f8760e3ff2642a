"""Which of a graph's numbers are operands, so that other values need no other executable.

Python computes them, as in eager, and passes what the device's operators read as 0-d operands. A
number that decides a shape, or that a rule must know, stays part of the key (decision 65).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.compiler import overloads
from torch_neuronx.dynamo.obstacles import (
    arguments,
    attribute,
    is_subgraph,
    on_host,
    runs_on_host,
    with_known_offset,
)
from torch_neuronx.dynamo.sizes import SYMBOLIC, is_number


def symbols_of(value: Any) -> set[Any]:
    """The symbols of a number."""
    return set(value.node.expr.free_symbols) if isinstance(value, SYMBOLIC) else set()


class Numbers:
    """A graph's numbers.

    ``uses``: for an operator's node, which of its arguments, by position in the schema, are
    operands. ``known``: the symbols whose values an executable must know. ``on_host``: the numbers
    that Python computes from the graph's inputs alone. Without ``rules`` the operators are another
    front end's, which takes a 0-d array for a tensor only.
    """

    def __init__(self, gm: GraphModule, *, rules: bool = True) -> None:
        self._rules = rules
        self.on_host: set[Node] = set()
        self.known: set[Any] = set()
        self.uses: dict[Node, set[int]] = {}
        for node in gm.graph.nodes:
            value = node.meta.get("val")
            if is_number(value):
                self._number(node)
            elif runs_on_host(node):
                self.on_host.add(node)
            elif node.op == "call_function":
                self._operator(node)
            if node.op != "output":
                self._shape(node, value)
        for node in with_known_offset(gm):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.known |= symbols_of(value.storage_offset())
        self.uses = {node: found for node in self.uses if (found := self._changing(node))}

    def is_operand(self, node: Any) -> bool:
        """Whether a number has a symbol whose value no executable must know."""
        return isinstance(node, Node) and bool(self._symbols(node) - self.known)

    def _symbols(self, node: Node) -> set[Any]:
        return symbols_of(node.meta.get("val"))

    def _number(self, node: Node) -> None:
        def there(source: Node) -> bool:
            return source in self.on_host or on_host(source) or source.op == "placeholder"

        if all(there(n) for n in node.all_input_nodes):
            self.on_host.add(node)
        else:
            self.known |= self._symbols(node)

    def _operator(self, node: Node) -> None:
        """Note which numbers an operator reads as operands, and which it must know."""
        allowed = (
            overloads.graph_operands(node.target, rule=self._rules)
            if isinstance(node.target, torch._ops.OpOverload)
            else ()
        )
        for i, argument in enumerate(arguments(node)):
            if i in allowed and isinstance(argument, Node):
                if is_number(argument.meta.get("val")):
                    self.uses.setdefault(node, set()).add(i)
                continue
            self._must_know(argument)

    def _must_know(self, argument: Any) -> None:
        if isinstance(argument, (list, tuple)):
            for item in argument:
                self._must_know(item)
        elif isinstance(argument, Node):
            if is_subgraph(argument):
                self._function(attribute(argument))
            self.known |= self._symbols(argument)
        else:
            self.known |= symbols_of(argument)

    def _function(self, gm: GraphModule) -> None:
        """A function of control flow has numbers written in."""
        for node in gm.graph.nodes:
            self._shape(node, node.meta.get("val"))
            self.known |= self._symbols(node)
            if is_subgraph(node):
                self._function(attribute(node))

    def _shape(self, node: Node, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for item in value:
                self._shape(node, item)
        elif isinstance(value, torch.Tensor):
            for size in (*value.shape, *value.stride()):
                self.known |= symbols_of(size)
            if node.op == "placeholder":
                self.known |= symbols_of(value.storage_offset())

    def _changing(self, node: Node) -> set[int]:
        given = arguments(node)
        return {
            i for i in self.uses[node] if given[i] in self.on_host and self.is_operand(given[i])
        }


def with_arguments(node: Node, replaced: dict[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An operator's positional and named arguments with those at ``replaced`` exchanged."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    args = tuple(replaced.get(i, a) for i, a in enumerate(node.args))
    by_name = {names[i]: value for i, value in replaced.items() if i >= len(args)}
    return args, {**node.kwargs, **by_name}
