"""What keeps a graph from becoming one executable.

A graph with an obstacle runs operator by operator, where the fallback policy applies (decision
D8). Values on the CPU are no obstacle as long as moving them to the device changes no bit of any
result: inputs and constants that are only copied, viewed or cast on their way to the device, and
0-d numbers that are computed with in at most 32 bits.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.compiler import overloads
from torch_neuronx.dynamo.sizes import SYMBOLIC, depends_on_data, is_number

_WIDE = (torch.float64, torch.complex128)


def line_of(node: Node) -> str:
    """Where Python issued the node, in brackets: the last line of its stack trace."""
    trace = (node.stack_trace or "").strip().splitlines()
    lines = [text.strip() for text in trace if text.strip().startswith("File ")]
    return f" ({lines[-1]})" if lines else ""


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among a node's results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def on_host(node: Any) -> bool:
    """Whether a node's value is a CPU tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def is_copy(node: Node) -> bool:
    """``copy_(input, value)``: the form that AOTAutograd gives an input's mutation."""
    return node.op == "call_function" and node.target == torch.ops.aten.copy_.default


def devices(gm: GraphModule) -> list[torch.device]:
    """The neuron devices in a graph, first come first."""
    found = [
        t.device
        for node in gm.graph.nodes
        for t in tensors(node.meta.get("val"))
        if t.device.type == "neuron"
    ]
    return list(dict.fromkeys(found))


def find(gm: GraphModule) -> str | None:
    """Why the graph cannot be one executable, naming the Python line; or None."""
    several = devices(gm)
    if len(several) > 1:
        return f"it uses several devices: {', '.join(map(str, several))}"
    written: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op == "output":
            reason = _output(node)
        elif node.op == "call_function":
            reason = _call(node, written)
        elif node.op in ("placeholder", "get_attr"):
            reason = _device(node)
        else:
            reason = f"it calls the module or method {node.target}"
        if reason:
            return reason + line_of(node)
    return None


def _call(node: Node, written: set[Node]) -> str | None:
    value = node.meta.get("val")
    if is_number(value) or node.target is operator.getitem:
        return f"{node.name} depends on data" if depends_on_data(value) else None
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"the higher-order operator {node.target} has no lowering"
    if not isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target} is no ATen operator"
    if is_copy(node):
        target = node.args[0]
        read = [node.args[1]]
        if not isinstance(target, Node) or target.op != "placeholder" or on_host(target):
            return f"{node.name} writes to what is not an input on the device"
        written.add(target)
        # A second write to the same input, and a read of another one, would see the first.
        return _after_write(read, written - {target})
    name = node.target.name()
    if name not in overloads.rule_names():
        return f"{name} has no lowering rule"
    if any(depends_on_data(t) for t in tensors(value)):
        return f"the shape of {node.name} depends on data"
    return _after_write(node.all_input_nodes, written) or _device(node)


def _after_write(read: list[Any], written: set[Node]) -> str | None:
    late = [n.name for n in read if n in written]
    return f"it reads {', '.join(late)} after having written to it" if late else None


def _device(node: Node) -> str | None:
    for value in tensors(node.meta.get("val")):
        if value.device.type not in ("neuron", "cpu"):
            return f"{node.name} is on device {value.device}"
        if value.device.type == "cpu" and node.op == "call_function":
            row = overloads.table()[node.target.name()]  # type: ignore[union-attr]
            number = value.dim() == 0 and value.dtype not in _WIDE
            if row.uses_rng or not (row.exact or number):
                return f"{node.name} computes on the CPU"
    return None


def _output(node: Node) -> str | None:
    for item in node.args[0]:  # type: ignore[union-attr]
        if on_host(item):
            return f"its result {item.name} is on the CPU"
        value = item.meta.get("val") if isinstance(item, Node) else None
        if isinstance(value, SYMBOLIC) and not isinstance(value, torch.SymInt):
            return f"its result {item.name} is a number that is no integer"
    return None
