"""Splits a graph into what runs on the CPU and what runs on the device.

PyTorch programs keep some numbers on the CPU, such as an optimiser's step count, and compute with
them. Those nodes are run by PyTorch's CPU kernels before the device's, exactly as in eager, and so
is what Python computes of numbers (``numbers``); what the device needs of them is passed as further
inputs of the device's graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo.numbers import Numbers, symbols_of, with_arguments
from torch_neuronx.dynamo.obstacles import arguments, is_copy, on_host, runs_on_host
from torch_neuronx.dynamo.sizes import is_number


@dataclasses.dataclass(frozen=True)
class Split:
    """Both parts of a graph, and how their inputs and results fit together.

    ``host`` takes the graph's inputs. The first ``num_passed`` of its results are further inputs of
    ``device``; then come the graph's results at ``host_results``, where ``device`` gives None; then
    what is to be copied into the CPU inputs at ``host_writes``, after ``device`` has read them. It
    is None when there is nothing of all that. ``unused`` are the positions of the graph's inputs
    that ``device`` does not read. ``operands``: those of the numbers among ``device``'s inputs that
    are no part of the key.
    """

    device: GraphModule
    host: GraphModule | None
    num_passed: int
    host_results: tuple[int, ...]
    host_writes: tuple[int, ...]
    unused: tuple[int, ...]
    operands: tuple[int, ...] = ()


def split(gm: GraphModule, *, rules: bool = True) -> Split:
    """Split a graph that has no obstacle (``obstacles.find``); ``rules`` as in ``Numbers``."""
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    (output,) = [n for n in nodes if n.op == "output"]
    results: list[Any] = [
        r.args[0] if isinstance(r, Node) and is_copy(r) else r for r in output.args[0]
    ]
    numbers = Numbers(gm, rules=rules)
    writes = [n for n in nodes if is_copy(n) and on_host(n.args[0])]
    on_cpu = {n for n in nodes if runs_on_host(n) and n not in writes}
    host_results = tuple(i for i, r in enumerate(results) if on_host(r) or numbers.is_operand(r))
    operands = list(
        dict.fromkeys(arguments(n)[i] for n, places in numbers.uses.items() for i in places)
    )
    told = [n for n in nodes if n.op == "call_function" and is_number(n.meta.get("val"))
            and any(on_host(s) for s in n.all_input_nodes)]  # fmt: skip
    if not on_cpu and not host_results and not writes and not operands and not told:
        return Split(gm, None, 0, (), (), _unused(gm, len(inputs), numbers))
    others = on_cpu | {output, *writes, *told}
    passed = [n for n in nodes if n in on_cpu and on_host(n) and set(n.users) - others]
    passed += [n for n in told if not (s := symbols_of(n.meta["val"])) or s & numbers.known]

    host, device = _Part(), _Part()
    for node in inputs:
        host.copy(node)
        device.copy(node)
    for node in passed:
        device.made[node] = device.input(node, f"{node.name}_from_cpu")
    values = {node: device.input(node, f"{node.name}_operand") for node in operands}
    for value in values.values():
        value.meta["operand"] = True
    for node in nodes:
        if node.op in ("placeholder", "output") or node in writes:
            continue
        number = node.op == "call_function" and is_number(node.meta.get("val"))
        if node in on_cpu or (node.op == "get_attr" and on_host(node)) or number:
            host.copy(node)
        if node in numbers.uses:
            given = arguments(node)
            replaced = {i: values[given[i]] for i in numbers.uses[node]}
            device.copy_with(node, replaced)
        elif node not in on_cpu and node not in device.made:
            device.copy(node)
    host.graph.output(
        tuple(host.made[n] for n in (*passed, *operands))
        + tuple(host.made[results[i]] for i in host_results)
        + tuple(host.made[n.args[1]] for n in writes)
    )
    device.graph.output(
        tuple(
            device.made[r] if isinstance(r, Node) and i not in host_results
            else None if isinstance(r, Node) else r
            for i, r in enumerate(results)
        )
    )  # fmt: skip
    on_device = device.module(gm)
    first = len(inputs) + len(passed)
    return Split(
        on_device,
        host.module(gm),
        len(passed) + len(operands),
        host_results,
        tuple(inputs.index(n.args[0]) for n in writes),
        _unused(on_device, len(inputs), numbers),
        tuple(range(first, first + len(operands))),
    )


def _unused(gm: GraphModule, count: int, numbers: Numbers) -> tuple[int, ...]:
    """Of the first ``count`` inputs, CPU tensors and numbers that nobody reads."""

    def idle(node: Node) -> bool:
        value = node.meta.get("val")
        if node.users:
            return False
        return on_host(node) or (
            is_number(value) and bool(symbols_of(value)) and not symbols_of(value) & numbers.known
        )

    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"][:count]
    return tuple(i for i, n in enumerate(inputs) if idle(n))


class _Part:
    """A graph made of copies of another's nodes."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.made: dict[Node, Node] = {}

    def input(self, node: Node, name: str) -> Node:
        """A new input for a node's value."""
        made = self.graph.placeholder(name)
        made.meta = dict(node.meta)
        return made

    def copy(self, node: Node) -> None:
        """Copy a node; a number only where what it is computed from is there."""
        if is_number(node.meta.get("val")) and not all(
            n in self.made for n in node.all_input_nodes
        ):
            return
        self.made[node] = self.graph.node_copy(node, self.made.__getitem__)

    def copy_with(self, node: Node, replaced: dict[int, Node]) -> None:
        """Copy an operator's node with the arguments at some positions exchanged."""
        mine = set(replaced.values())
        args, kwargs = torch.fx.map_arg(
            with_arguments(node, replaced), lambda n: n if n in mine else self.made[n]
        )  # type: ignore[misc]
        made = self.graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = dict(node.meta)
        self.made[node] = made

    def module(self, gm: GraphModule) -> GraphModule:
        """The finished module, without numbers and constants that nobody reads."""
        for node in reversed(self.graph.nodes):
            idle = node.op == "get_attr" or (
                node.op == "call_function" and is_number(node.meta.get("val"))
            )
            if idle and not node.users:
                self.graph.erase_node(node)
        return GraphModule(gm, self.graph)
