"""Splits a graph into what runs on the CPU and what runs on the device.

PyTorch programs keep some numbers on the CPU, such as an optimiser's step count, and compute with
them. Those nodes are run by PyTorch's CPU kernels before the device's, exactly as in eager; what
the device needs of them is passed as further inputs of the device's graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo.obstacles import is_copy, on_host, runs_on_host
from torch_neuronx.dynamo.sizes import is_number


@dataclasses.dataclass(frozen=True)
class Split:
    """Both parts of a graph, and how their inputs and results fit together.

    ``host`` takes the graph's inputs. The first ``num_passed`` of its results are further inputs of
    ``device``; then come the graph's results at ``host_results``, where ``device`` gives None; then
    what is to be copied into the CPU inputs at ``host_writes``, after ``device`` has read them. It
    is None when there is nothing of all that. ``unused`` are the positions of the CPU inputs that
    ``device`` does not read.
    """

    device: GraphModule
    host: GraphModule | None
    num_passed: int
    host_results: tuple[int, ...]
    host_writes: tuple[int, ...]
    unused: tuple[int, ...]


def split(gm: GraphModule) -> Split:
    """Split a graph that has no obstacle (``obstacles.find``)."""
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    (output,) = [n for n in nodes if n.op == "output"]
    results: list[Any] = [
        r.args[0] if isinstance(r, Node) and is_copy(r) else r for r in output.args[0]
    ]
    writes = [n for n in nodes if is_copy(n) and on_host(n.args[0])]
    on_cpu = {n for n in nodes if runs_on_host(n) and n not in writes}
    host_results = tuple(i for i, r in enumerate(results) if on_host(r))
    if not on_cpu and not host_results and not writes:
        return Split(gm, None, 0, (), (), _unused(gm, len(inputs)))
    others = on_cpu | {output, *writes}
    passed = [n for n in nodes if n in on_cpu and on_host(n) and set(n.users) - others]

    host, device = _Part(), _Part()
    for node in inputs:
        host.copy(node)
        device.copy(node)
    for node in passed:
        made = device.graph.placeholder(f"{node.name}_from_cpu")
        made.meta = dict(node.meta)
        device.made[node] = made
    for node in nodes:
        if node.op in ("placeholder", "output") or node in writes:
            continue
        number = node.op == "call_function" and is_number(node.meta.get("val"))
        if node in on_cpu or (node.op == "get_attr" and on_host(node)) or number:
            host.copy(node)
        if node not in on_cpu:
            device.copy(node)
    host.graph.output(
        tuple(host.made[n] for n in passed)
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
    return Split(
        on_device,
        host.module(gm),
        len(passed),
        host_results,
        tuple(inputs.index(n.args[0]) for n in writes),
        _unused(on_device, len(inputs)),
    )


def _unused(gm: GraphModule, count: int) -> tuple[int, ...]:
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"][:count]
    return tuple(i for i, n in enumerate(inputs) if on_host(n) and not n.users)


class _Part:
    """A graph made of copies of another's nodes."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.made: dict[Node, Node] = {}

    def copy(self, node: Node) -> None:
        """Copy a node; a number only where what it is computed from is there."""
        if is_number(node.meta.get("val")) and not all(
            n in self.made for n in node.all_input_nodes
        ):
            return
        self.made[node] = self.graph.node_copy(node, self.made.__getitem__)

    def module(self, gm: GraphModule) -> GraphModule:
        """The finished module, without numbers and constants that nobody reads."""
        for node in reversed(self.graph.nodes):
            idle = node.op == "get_attr" or (
                node.op == "call_function" and is_number(node.meta.get("val"))
            )
            if idle and not node.users:
                self.graph.erase_node(node)
        return GraphModule(gm, self.graph)
