"""What keeps a graph from becoming one executable.

A graph with an obstacle runs operator by operator, where the fallback policy applies (decision
D8). Operators on CPU tensors are no obstacle as long as none of them reads what the device
computes: they run first, on the CPU (``split.py``).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.compiler import overloads
from torch_neuronx.dynamo.sizes import SYMBOLIC, is_number, symbols_told_by_data


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


def arguments(node: Node) -> list[Any]:
    """A node's arguments, an operator's in its schema's order."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return [*node.args, *node.kwargs.values()]
    names = [a.name for a in node.target._schema.arguments[len(node.args) :]]
    return [*node.args, *(node.kwargs.get(name) for name in names)]


def on_host(node: Any) -> bool:
    """Whether a node's value is a CPU tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def runs_on_host(node: Node) -> bool:
    """Whether a node is an operator whose results are all on the CPU."""
    results = tensors(node.meta.get("val"))
    return (
        node.op == "call_function"
        and bool(results)
        and all(t.device.type == "cpu" for t in results)
    )


def told_by_data(gm: GraphModule) -> set[Node]:
    """The operators whose result's value or shape only the data can tell.

    A later check may have told the tracer, as ``x[mask].reshape(2, 3)`` does: then the value is
    traced with a number, and is no less the data's. So the kind of operator counts, too.
    """
    seen: set[Any] = set()
    found = set()
    placed = with_known_offset(gm)
    for node in gm.graph.nodes:
        symbols = symbols_told_by_data(node.meta.get("val"), offsets=node in placed)
        if (
            node.op == "call_function"
            and not is_item_on_host(node)
            and (_asks_data(node) or not seen.issuperset(symbols))
        ):
            found.add(node)
        seen.update(symbols)
    return found


def is_item_on_host(node: Node) -> bool:
    """Whether a node is the number that a 0-d CPU tensor holds."""
    return node.target == torch.ops.aten._local_scalar_dense.default and on_host(node.args[0])


def with_known_offset(gm: GraphModule) -> set[Node]:
    """The tensors whose place in their storage an executable must know: the graph's results, and
    what is strided anew, with all that they are views of."""
    asked = [n for n in gm.graph.nodes if n.op == "output" or _restrides(n)]
    asked = [source for n in asked for source in n.all_input_nodes]
    found: set[Node] = set()
    while asked:
        node = asked.pop()
        if node in found:
            continue
        found.add(node)
        if node.target is operator.getitem or getattr(node.target, "is_view", False):
            asked += node.all_input_nodes[:1]
    return found


def _restrides(node: Node) -> bool:
    name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
    return name.startswith("aten::as_strided")


def _asks_data(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.dynamic_output_shape not in tags:
        return torch.Tag.data_dependent_output in tags
    if node.target == torch.ops.aten.index.Tensor:
        indices = [n.meta["val"] for n in node.args[1] if n is not None]  # type: ignore[union-attr]
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    if node.target == torch.ops.aten.repeat_interleave.Tensor:
        return node.kwargs.get("output_size") is None
    return True


def is_check(node: Node) -> bool:
    """Whether a node only asserts something about a number."""
    return node.target == torch.ops.aten._assert_scalar.default


def is_idle_check(node: Node) -> bool:
    """Whether a node asserts what was proven when it was traced."""
    return is_check(node) and node.args[0] is True


def is_copy(node: Node) -> bool:
    """``copy_(input, value)``: the form that AOTAutograd gives an input's mutation."""
    return node.op == "call_function" and node.target == torch.ops.aten.copy_.default


def attribute(node: Node) -> Any:
    """What a ``get_attr`` node stands for."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def is_subgraph(node: Any) -> bool:
    """Whether a node is a function of control flow, an argument of a higher-order operator."""
    return isinstance(node, Node) and node.op == "get_attr" and isinstance(
        attribute(node), GraphModule
    )  # fmt: skip


# Higher-order operators with a rule in lowering/control.py; those that run their functions in an
# order, or a number of times, that only the data tell.
_CONTROL = frozenset(
    {
        "cond",
        "while_loop",
        "while_loop_stack_output",
        "map_impl",
        "scan",
        "associative_scan",
        "invoke_subgraph",
    }
)


def control_name(node: Node) -> str:
    """``higher_order::cond`` of a higher-order operator's node."""
    return f"higher_order::{node.target.name()}"  # type: ignore[union-attr]


def _control(node: Node, told: set[Node]) -> str | None:
    name = node.target.name()  # type: ignore[union-attr]
    if name not in _CONTROL:
        return f"the higher-order operator {name} has no lowering"
    if node in told:
        return f"a result of {node.name} depends on data"
    for argument in node.all_input_nodes:
        if is_subgraph(argument):
            reason = _function(attribute(argument), random=name == "invoke_subgraph")
            if reason:
                return f"in a function of {node.name}, {reason}"
    return None


def _function(gm: GraphModule, *, random: bool) -> str | None:
    """Why a function of control flow cannot be lowered, or None."""
    told = told_by_data(gm)
    inner = _inner_numbers(gm)
    for node in gm.graph.nodes:
        reason = None
        if node in inner:
            known = [u.name for u in node.users if u not in inner and not _reads(u, node)]
            reason = f"{known[0]} must know {node.name}, which depends on data" if known else None
        elif node.op == "get_attr" and not is_subgraph(node):
            reason = f"{node.name} is a constant tensor"
        elif node.op == "call_function":
            tags = getattr(node.target, "tags", ())
            if is_copy(node):
                reason = f"{node.name} writes to an input"
            elif not random and torch.Tag.nondeterministic_seeded in tags:
                # Eager draws as often as it runs the function, which no executable can know.
                reason = f"{node.name} draws random numbers"
            else:
                reason = _call(node, set(), told)
        if reason:
            return reason + line_of(node)
    return None


# How a number that a loop computes becomes another.
ARITHMETIC = {
    operator.add: "aten::add.Tensor",
    operator.sub: "aten::sub.Tensor",
    operator.mul: "aten::mul.Tensor",
}


def _inner_numbers(gm: GraphModule) -> set[Node]:
    """The numbers of a function of control flow that are 0-d arrays inside its executable."""
    found: set[Node] = set()
    for node in gm.graph.nodes:
        item = node.target == torch.ops.aten._local_scalar_dense.default
        if item or (node.target in ARITHMETIC and found.intersection(node.all_input_nodes)):
            found.add(node)
    return found


def _reads(user: Node, number: Node) -> bool:
    """Whether an operator takes a number as an array, and nowhere else."""
    if not isinstance(user.target, torch._ops.OpOverload):
        return False
    allowed = overloads.graph_operands(user.target)
    given = arguments(user)
    places = {i for i, a in enumerate(given) if a is number}
    nested = [a for a in given if isinstance(a, (list, tuple)) and number in a]
    return places <= allowed and not nested


def devices(gm: GraphModule) -> list[torch.device]:
    """The neuron devices in a graph, first come first."""
    found = [
        t.device
        for node in gm.graph.nodes
        for t in tensors(node.meta.get("val"))
        if t.device.type == "neuron"
    ]
    return list(dict.fromkeys(found))


def by_rule(calls: list[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The overloads of a graph's calls on the device: those with a rule, and those without."""
    names = {
        n.target.name()
        for n in calls
        if isinstance(n.target, torch._ops.OpOverload)
        and not (is_copy(n) or is_idle_check(n) or runs_on_host(n))
    }
    rules = overloads.rule_names()
    return tuple(sorted(names & rules)), tuple(sorted(names - rules))


def find(gm: GraphModule) -> str | None:
    """Why the graph cannot be one executable, naming the Python line; or None."""
    found = devices(gm)
    if not found:
        return "none of its tensors is on the device"
    if len(found) > 1:
        return f"it uses several devices: {', '.join(map(str, found))}"
    written: set[Node] = set()
    told = told_by_data(gm)
    for node in gm.graph.nodes:
        if node.op == "output":
            reason = _output(node)
        elif node.op == "call_function":
            reason = _call(node, written, told)
        elif node.op in ("placeholder", "get_attr"):
            reason = None
        else:
            reason = f"it calls the module or method {node.target}"
        if reason:
            return reason + line_of(node)
    return None


def of_call(node: Node, told: set[Node]) -> str | None:
    """Why no executable can hold this operator, wherever in the graph it stands; or None.

    ``told`` is ``told_by_data`` of the graph.
    """
    if is_number(node.meta.get("val")) or runs_on_host(node):
        return None
    return _call(node, set(), told)


def _call(node: Node, written: set[Node], told: set[Node]) -> str | None:
    value = node.meta.get("val")
    on_cpu = [n.name for n in node.all_input_nodes if runs_on_host(n)]
    if is_idle_check(node):
        return None
    if is_number(value):
        if node in told:
            return f"{node.name} depends on data"
        if is_item_on_host(node):
            return None
        return f"{node.name} is a size of {on_cpu[0]}, which is on the CPU" if on_cpu else None
    if is_copy(node):
        return _copy(node, written)
    late = _after_write(node.all_input_nodes, written)
    if late:
        return late
    if runs_on_host(node):
        there = [n.name for n in node.all_input_nodes if _on_device(n)]
        return f"{node.name} is on the CPU and reads {there[0]} on the device" if there else None
    if node.target is operator.getitem:
        return None
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _control(node, told)
    if not isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target} is no ATen operator"
    if node.target.name() not in overloads.rule_names():
        return f"{node.target.name()} has no lowering rule"
    for result in tensors(value):
        if result.device.type != "neuron":
            return f"{node.name} is on device {result.device}"
    if node in told:
        return f"the shape of {node.name} depends on data"
    return None


def _copy(node: Node, written: set[Node]) -> str | None:
    """An input's mutation: the last thing that happens to that input."""
    target, source = node.args[:2]
    if not isinstance(target, Node) or target.op != "placeholder":
        return f"{node.name} writes to what is not an input"
    if on_host(target) != on_host(source):
        return f"{node.name} copies between the CPU and the device"
    late = _after_write([source], written)
    written.add(target)
    return late


def _on_device(node: Node) -> bool:
    return any(t.device.type == "neuron" for t in tensors(node.meta.get("val")))


def _after_write(read: list[Any], written: set[Node]) -> str | None:
    late = [n.name for n in read if n in written]
    return f"it reads {', '.join(late)} after having written to it" if late else None


def _output(node: Node) -> str | None:
    for item in node.args[0]:  # type: ignore[union-attr]
        value = item.meta.get("val") if isinstance(item, Node) else None
        if isinstance(value, SYMBOLIC) and not isinstance(value, torch.SymInt):
            return f"its result {item.name} is a number that is no integer"
    return None
