"""Splits a graph with obstacles: executables, and between them what runs operator by operator.

Every node has a level: the number of times that the way to it leaves an executable. One executable
holds the nodes of a level; then the obstacles of that level run, each by itself. Values stay on the
device between them.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo import obstacles
from torch_neuronx.dynamo.sizes import (
    depends_on_data,
    is_number,
    known_number,
    symbol_told_by_data,
    symbols_told_by_data,
)


@dataclasses.dataclass(frozen=True)
class Region:
    """One executable's graph; its inputs and results are nodes of the whole graph."""

    gm: GraphModule
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]


Step = Region | Node


@dataclasses.dataclass(frozen=True)
class Regions:
    """Steps in order, and how many operators run by themselves."""

    steps: tuple[Step, ...]
    alone: int


def split(gm: GraphModule) -> Regions | None:
    """The regions of a graph with an obstacle; None if no executable would remain."""
    if len(obstacles.devices(gm)) != 1:
        return None
    blocked = _blocked(gm)
    if blocked is None:
        return None
    told = _told_sizes(gm)
    levels, alone = _levels(gm, blocked, told)
    inside: dict[int, list[Node]] = {}
    outside: dict[int, list[Node]] = {}
    writes = []
    for node in gm.graph.nodes:
        if obstacles.is_copy(node):
            writes.append(node)
        elif node.op == "call_function":
            (outside if node in alone else inside).setdefault(levels[node], []).append(node)
    if not any(_computes(n) for nodes in inside.values() for n in nodes):
        return None
    steps: list[Step] = []
    for level in sorted({*inside, *outside}):
        nodes = inside.get(level, [])
        if nodes:
            steps.append(_region(gm, nodes, told))
        steps += outside.get(level, [])
    count = sum(not is_number(n.meta.get("val")) and not obstacles.is_check(n) for n in alone)
    return Regions((*steps, *writes), count)


def _computes(node: Node) -> bool:
    return node.target is not operator.getitem and not getattr(node.target, "is_view", False)


def _blocked(gm: GraphModule) -> set[Node] | None:
    """What no executable can hold; None if writes to inputs do not come last."""
    blocked: set[Node] = set()
    written: set[Node] = set()
    told = obstacles.told_by_data(gm)
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "placeholder", "get_attr", "output"):
            return None
        if node.op != "call_function" or is_number(node.meta.get("val")):
            continue
        if obstacles.is_copy(node):
            written.add(node.args[0])
        elif written & set(node.all_input_nodes):
            return None
        elif obstacles.of_call(node, told):
            blocked.add(node)
    return blocked


def _levels(
    gm: GraphModule, blocked: set[Node], told: dict[Any, Node]
) -> tuple[dict[Node, int], set[Node]]:
    """Each node's level, and the nodes that run by themselves.

    ``told`` are the numbers that give what symbols of data stand for: whose shape has such a symbol
    waits for its number. What runs by itself and reads nothing but the graph's inputs has level -1.
    """
    alone: set[Node] = set()
    levels: dict[Node, int] = {}
    random = -1  # draws keep their order: a later one's level is no lower
    for node in gm.graph.nodes:
        if node.op != "call_function":
            levels[node] = -1
            continue
        number = is_number(node.meta.get("val"))
        part = node.target is operator.getitem and node.args[0] in alone
        if node in blocked or number or part or obstacles.runs_on_host(node):
            alone.add(node)
        level = -1 if node in alone else 0
        for source in node.all_input_nodes:
            if _known_size(source) and node not in alone:
                continue  # an executable reads sizes off its inputs
            leaves = source in alone and node not in alone
            level = max(level, levels[source] + leaves)
        if node not in alone:
            numbers = [told.get(s) for s in _told_by_data(node)]
            level = max([level, *(levels[n] + 1 for n in numbers if n in levels)])
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            level = random = max(level, random)
        levels[node] = level
    return levels, alone


def _told_by_data(node: Node) -> list[Any]:
    """The symbols of a node's sizes and strides that the data tell."""
    return symbols_told_by_data(node.meta.get("val"), offsets=False)


def _told_sizes(gm: GraphModule) -> dict[Any, Node]:
    """For each symbol that data tells, the first number that gives it; put into the graph where
    that is the size of a tensor which nobody asks for."""
    numbers: dict[Any, Node] = {}
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if is_number(value):
            symbol = symbol_told_by_data(value)
            if symbol is not None:
                numbers.setdefault(symbol, node)
        elif isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                symbol = symbol_told_by_data(size)
                if symbol is not None and symbol not in numbers:
                    numbers[symbol] = _size(node, dim)
    return numbers


def _size(node: Node, dim: int) -> Node:
    """The number node of a tensor's size."""
    for user in node.users:
        if user.target == torch.ops.aten.sym_size.int and user.args == (node, dim):
            return user
    last = node
    while last.next.op == "placeholder":
        last = last.next
    with node.graph.inserting_after(last):
        made = node.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
    made.meta["val"] = node.meta["val"].shape[dim]
    return made


def _known_size(node: Node) -> bool:
    value = node.meta.get("val")
    return is_number(value) and not depends_on_data(value)


def _region(gm: GraphModule, nodes: list[Node], told: dict[Any, Node]) -> Region:
    """``told`` are the numbers that give what symbols of data stand for."""
    members = set(nodes)
    graph = Graph()
    made: dict[Node, Any] = {}
    # A graph's numbers tell its symbols' values.
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder" and _known_size(n)]
    symbols = {s: None for n in nodes for s in _told_by_data(n)}
    inputs += [told[s] for s in symbols]
    functions: list[Node] = []
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in members and not _known_size(source):
                known = functions if obstacles.is_subgraph(source) else inputs
                if source not in known:
                    known.append(source)
    for source in inputs:
        made[source] = graph.placeholder(source.name)
        made[source].meta = dict(source.meta)
    for source in functions:
        made[source] = graph.node_copy(source)

    def value_of(node: Node) -> Any:
        return made[node] if node in made else node.meta["val"]

    for node in nodes:
        made[node] = graph.node_copy(node, value_of)
    results = tuple(n for n in nodes if _is_tensor(n) and any(u not in members for u in n.users))
    graph.output(tuple(made[n] for n in results))
    return Region(GraphModule(gm, graph), tuple(inputs), results)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _check_promise(node: Node, value: torch.Tensor) -> None:
    """Raise if data tell another size than a later line of the function lets be."""
    sizes = zip(value.shape, node.meta["val"].shape, strict=True)
    if any(known_number(traced) not in (None, told) for told, traced in sizes):
        raise RuntimeError(
            f"{node.target} gave the shape {tuple(value.shape)}, but the function was captured for "
            f"{tuple(node.meta['val'].shape)}: a later line (a reshape, an addition, torch._check) "
            f"allows no other size{obstacles.line_of(node)}. Allow any size there, or keep that "
            "line out of the graph with torch.compiler.disable"
        )


class Runner:
    """Runs a split graph; ``compiled`` are its regions' functions, in the order of the steps."""

    def __init__(
        self,
        gm: GraphModule,
        regions: Regions,
        compile_region: Callable[[GraphModule], Callable[..., list[Any]]],
    ) -> None:
        self._gm = gm
        self._steps = [
            (step, compile_region(step.gm) if isinstance(step, Region) else None)
            for step in regions.steps
        ]
        self._inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._constants = {n: obstacles.attribute(n) for n in gm.graph.nodes if n.op == "get_attr"}
        (self._output,) = [n for n in gm.graph.nodes if n.op == "output"]
        self._promised = {n for n in obstacles.told_by_data(gm) if _is_tensor(n)}
        self._last = self._last_uses()

    def _last_uses(self) -> list[list[Node]]:
        """For each step, the values that nothing after it reads."""
        seen: set[Node] = set(self._output.all_input_nodes)
        found: list[list[Node]] = []
        for step, _ in reversed(self._steps):
            read: Iterable[Node] = step.inputs if isinstance(step, Region) else step.all_input_nodes
            made: Iterable[Node] = step.results if isinstance(step, Region) else (step,)
            found.append([n for n in {*read, *made} if n not in seen])
            seen.update(read)
            seen.update(made)
        return found[::-1]

    def __call__(self, *inputs: Any) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        values.update(self._constants)
        for (step, function), last in zip(self._steps, self._last, strict=True):
            if isinstance(step, Region):
                assert function is not None
                results = function(*(values[n] for n in step.inputs))
                values.update(zip(step.results, results, strict=True))
            else:
                args, kwargs = torch.fx.map_arg((step.args, step.kwargs), values.__getitem__)
                values[step] = step.target(*args, **kwargs)  # type: ignore[operator]
                if step in self._promised:
                    _check_promise(step, values[step])
            for node in last:
                del values[node]
        return list(torch.fx.map_arg(self._output.args[0], values.__getitem__))
