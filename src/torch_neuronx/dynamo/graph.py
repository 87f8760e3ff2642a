"""From an FX graph of ATen operators to a program."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.compiler import overloads, planning
from torch_neuronx.compiler.references import Writer, dtype_name, memory_order
from torch_neuronx.dynamo.sizes import Sizes
from torch_neuronx.lowering import program as ir
from torch_neuronx.neuron import target

_PLUMBING = frozenset(
    {"Device", "Layout", "MemoryFormat", "Generator", "Stream"}
)  # say where and how to store; the program has its own way


def constants(gm: GraphModule) -> list[torch.Tensor]:
    """Tensors that the graph holds as attributes, on the device, in the order of their nodes."""
    found = []
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = gm
            for part in node.target.split("."):
                value = getattr(value, part)
            on_cpu_scalar = value.device.type == "cpu" and value.dim() == 0
            found.append(value if on_cpu_scalar else value.to("neuron"))
    return found


def obstacle(gm: GraphModule, rules: frozenset[str]) -> str | None:
    """Why the graph cannot be one executable, or None."""
    for node in gm.graph.nodes:
        if node.op == "call_function":
            if isinstance(node.target, torch._ops.OpOverload):
                name = node.target.name()
                if name not in rules and name != "aten::copy_" and not _is_size(node):
                    return f"{name} has no lowering rule{_line(node)}"
            elif isinstance(node.target, torch._ops.HigherOrderOperator):
                return f"the higher-order operator {node.target} has no lowering{_line(node)}"
        elif node.op in ("call_module", "call_method"):
            return f"it calls the module or method {node.target}{_line(node)}"
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and node.op != "output":
            inside = value.device.type == "neuron"
            scalar = value.device.type == "cpu" and value.dim() == 0
            if not inside and not (scalar and node.op in ("placeholder", "get_attr")):
                return f"{node.name} is on device {value.device}{_line(node)}"
    return None


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat))


def _line(node: Node) -> str:
    """Where Python issued the node: the last line of its stack trace."""
    trace = (node.stack_trace or "").strip().splitlines()
    lines = [t.strip() for t in trace if t.strip().startswith("File ")]
    return f" ({lines[-1]})" if lines else ""


def canonical_text(gm: GraphModule) -> str:
    """The graph without names: equal graphs give equal text, also in another process."""
    number = {node: i for i, node in enumerate(gm.graph.nodes)}
    lines = []
    for node in gm.graph.nodes:
        name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else (
            "" if node.op in ("placeholder", "output") else str(node.target)
        )  # fmt: skip
        args = torch.fx.map_arg((node.args, node.kwargs), lambda n: f"%{number[n]}")  # type: ignore[arg-type, return-value]
        lines.append(f"{node.op} {name} {args!r}")
    return "\n".join(lines)


class _Translator:
    """One walk over a graph with the sizes of one call."""

    def __init__(self, gm: GraphModule, call: dict[str, Any], values: list[Any]) -> None:
        self.gm = gm
        self.writer = Writer(call)
        self.nodes: list[ir.Node] = []
        self.refs: dict[Node, Any] = {}
        self.writes: list[ir.Write] = []
        self.uses_rng = False
        inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        inputs += [n for n in gm.graph.nodes if n.op == "get_attr"]
        self.inputs = {node: i for i, node in enumerate(inputs)}
        self.sizes = Sizes([n.meta.get("val") for n in inputs if n.op == "placeholder"],
                           values[: sum(n.op == "placeholder" for n in inputs)])  # fmt: skip
        for node, value in zip(inputs, values, strict=True):
            self.refs[node] = self.writer.argument(value, "")

    def run(self) -> tuple[ir.Program, planning.Shape]:
        result: tuple[ir.Program, planning.Shape] | None = None
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                self.call_function(node)
            elif node.op == "output":
                result = self.finish(node)
        if result is None:
            raise RuntimeError("the graph has no output node")
        return result

    def call_function(self, node: Node) -> None:
        if node.target is operator.getitem:
            self.refs[node] = self.refs[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if _is_size(node):
            value = node.meta["val"]
            concrete = value if isinstance(value, (bool, float)) else self.sizes.value(value)
            self.refs[node] = ir.Constant(concrete)
            return
        name = node.target.name()  # type: ignore[union-attr]
        if name == "aten::copy_":
            self.copy_into_input(node)
            return
        schema = node.target._schema  # type: ignore[union-attr]
        args = []
        for i, a in enumerate(schema.arguments):
            kind = str(a.real_type)
            kind = kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind
            if i < len(node.args):
                value = node.args[i]
            else:
                value = node.kwargs.get(a.name, a.default_value)
            plumbing = kind in _PLUMBING or a.name == "pin_memory"
            args.append(ir.Constant(None) if plumbing else self.reference(value))
        outputs: list[ir.Array] = []
        index = len(self.nodes)
        self.refs[node] = self.results(node.meta["val"], index, outputs)
        self.uses_rng = self.uses_rng or overloads.table()[name].uses_rng
        self.nodes.append(ir.Node(name, tuple(args), tuple(outputs)))

    def results(self, value: Any, index: int, outputs: list[ir.Array]) -> Any:
        if isinstance(value, torch.Tensor):
            outputs.append(ir.Array(dtype_name(value.dtype), self.sizes.values(value.shape)))
            return ir.Result(index, len(outputs) - 1)
        if isinstance(value, (list, tuple)):
            return tuple(self.results(v, index, outputs) for v in value)
        return ir.Constant(None)

    def reference(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.refs[value]
        if isinstance(value, (list, tuple)):
            items = tuple(self.reference(v) for v in value)
            if all(isinstance(i, ir.Constant) for i in items):
                return ir.Constant(tuple(i.value for i in items))
            return items
        if isinstance(value, torch.dtype):
            return ir.Constant(dtype_name(value))
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return ir.Constant(None)
        if isinstance(value, torch.SymInt):
            return ir.Constant(self.sizes.value(value))
        return ir.Constant(value)

    def copy_into_input(self, node: Node) -> None:
        """``copy_(input, value)``: the form that AOTAutograd gives an input's mutation."""
        target_node, source = node.args[:2]
        read = self.refs[target_node]  # type: ignore[index]
        if not isinstance(read, ir.Read):
            raise RuntimeError(f"{node.name}: only inputs of the graph can be mutated")
        value = self.reference(source)
        if isinstance(value, ir.Read) and value == read:
            self.refs[node] = read
            return
        self.writes.append(ir.Write(read.param, read.view, value))
        self.refs[node] = value

    def finish(self, node: Node) -> tuple[ir.Program, planning.Shape]:
        outputs: list[ir.Output] = []
        planned: list[Any] = []
        returns: list[Any] = []
        placed: dict[Any, int] = {}
        written = {w.param for w in self.writes}
        for item in node.args[0]:  # type: ignore[union-attr]
            if not isinstance(item, Node):
                returns.append(["undefined", 0] if item is None else ["int", int(item)])
                continue
            value = item.meta.get("val")
            if item in self.inputs:
                returns.append(["argument", self.inputs[item]])
            elif not isinstance(value, torch.Tensor):
                returns.append(["int", int(self.refs[item].value)])
            elif (view := self.view_of_input(item, value, written)) is not None:
                returns.append(view)
            else:
                if item not in placed:
                    placed[item] = len(outputs)
                    layout = self.concrete(value)
                    perm = memory_order(layout)
                    outputs.append(ir.Output(self.refs[item], perm))
                    strides = list(layout.stride()) if perm else []
                    planned.append([dtype_name(value.dtype), list(layout.shape), strides])
                returns.append(["output", placed[item]])
        program = ir.Program(
            self.writer.params,
            tuple(self.nodes),
            tuple(outputs),
            tuple(self.writes),
            uses_rng=self.uses_rng,
            exact_float64=target.exact_float64(),
        )
        writes = list(dict.fromkeys(w.param for w in self.writes))
        return program, planning.Shape(planned, returns, writes, self.uses_rng)

    def concrete(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            self.sizes.values(value.shape),
            self.sizes.values(value.stride()),
            dtype=value.dtype,
            device="meta",
        )

    def view_of_input(self, item: Node, value: torch.Tensor, written: set[int]) -> Any:
        """How to return a view of an input without copying it; None when it is not one."""
        base = item
        while base.op == "call_function" and _is_view(base):
            base = base.all_input_nodes[0]
        if base is item or base not in self.inputs or base.op != "placeholder":
            return None
        read = self.refs[base]
        example = base.meta["val"]
        if not isinstance(read, ir.Read) or read.param in written or example.dtype != value.dtype:
            return None
        if value.untyped_storage()._cdata != example.untyped_storage()._cdata:
            return None
        offset = self.sizes.value(value.storage_offset())
        offset -= self.sizes.value(example.storage_offset())
        return [
            "view",
            self.inputs[base],
            list(self.sizes.values(value.shape)),
            list(self.sizes.values(value.stride())),
            offset,
        ]


def _is_view(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return len(returns) == 1 and returns[0].alias_info is not None


def write(
    gm: GraphModule, call: dict[str, Any], values: list[Any]
) -> tuple[ir.Program, planning.Shape]:
    """The program of a graph for one call, and what its plan must know.

    ``values`` are the graph's inputs followed by its constants.
    """
    return _Translator(gm, call, values).run()
