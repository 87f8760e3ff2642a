"""Asks how many turns a loop makes before its results of all turns are computed.

AOTAutograd trains ``while_loop`` through ``while_loop_stack_output``, whose results have a row for
each turn. An executable's shapes are known, so one counts the turns, the number is read, and the
next one makes that many (decision 67).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo.obstacles import attribute, devices
from torch_neuronx.dynamo.sizes import depends_on_data


def count_turns(gm: GraphModule) -> None:
    """Put a counting loop, and the reading of its number, before each loop that needs it, in
    place."""
    found = [
        n
        for n in gm.graph.nodes
        if n.target is torch.ops.higher_order.while_loop_stack_output
        and depends_on_data(_turns(n.meta["val"]))
    ]
    for node in found:
        _count(gm, node)
    if found:
        gm.recompile()


def _turns(value: Any) -> Any:
    return next(v.shape[0] for v in value if isinstance(v, torch.Tensor))


def _count(gm: GraphModule, node: Node) -> None:
    condition, body, carried, additional = node.args
    names = {}
    for function in (condition, body):
        names[function] = f"{function.target}_counting_{node.name}"
        gm.add_submodule(names[function], _counting(attribute(function), function is body))
    mode = next(v.fake_mode for v in node.meta["val"] if isinstance(v, torch.Tensor))
    device = devices(gm)[0]
    aten = torch.ops.aten

    def call(target: Any, args: Any, value: Any) -> Node:
        made = gm.graph.call_function(target, args)
        made.meta["val"] = value
        made.stack_trace = node.stack_trace
        return made

    with gm.graph.inserting_before(node), mode:
        number = torch.empty((), dtype=torch.int64, device=device)
        zero = call(aten.full.default, ([], 0), number)
        zero.kwargs = {"dtype": torch.int64, "device": device}
        functions = [gm.graph.get_attr(names[f]) for f in (condition, body)]
        values = (number, *(_value(c) for c in carried))
        loop = call(
            torch.ops.higher_order.while_loop, (*functions, (zero, *carried), additional), values
        )
        turns = call(operator.getitem, (loop, 0), number)
        # A loop without turns gives what it starts with as one row.
        rows = call(aten.clamp_min.default, (turns, 1), number)
        read = call(aten._local_scalar_dense.default, (rows,), _turns(node.meta["val"]))
        read.name = f"turns_of_{node.name}"


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _counting(function: GraphModule, is_body: bool) -> GraphModule:
    """A loop's function that takes the turns made before, and its body gives one more."""
    graph = Graph()
    count = graph.placeholder("turns")
    made: dict[Node, Node] = {}
    for node in function.graph.nodes:
        if node.op != "output":
            made[node] = graph.node_copy(node, made.__getitem__)
            continue
        results = torch.fx.map_arg(node.args[0], made.__getitem__)
        if is_body:
            more = graph.call_function(torch.ops.aten.add.Tensor, (count, 1))
            results = (more, *results)  # type: ignore[misc]
        graph.output(results)
    first = next(n for n in function.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
    with first.meta["val"].fake_mode:
        count.meta["val"] = torch.empty((), dtype=torch.int64, device=first.meta["val"].device)
        if is_body:
            more.meta["val"] = torch.empty_like(count.meta["val"])
    return GraphModule(function, graph)
