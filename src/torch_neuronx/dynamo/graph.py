"""From an FX graph of ATen operators to a program."""

from __future__ import annotations

import collections
import dataclasses
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.compiler import overloads, planning
from torch_neuronx.compiler.references import PLUMBING, Writer, dtype_name, memory_order
from torch_neuronx.dynamo.obstacles import (
    ARITHMETIC,
    attribute,
    control_name,
    is_copy,
    is_idle_check,
    is_subgraph,
    line_of,
    on_host,
)
from torch_neuronx.dynamo.sizes import SYMBOLIC, Sizes, examples, is_number
from torch_neuronx.lowering import program as ir
from torch_neuronx.neuron import target

# Count an offset from the start of a storage, which rules do not see.
_STRIDED = frozenset({"aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter"})


class PlanningError(RuntimeError):
    """A graph could not be written as a program; names the node and the Python line."""


def constants(gm: GraphModule, device: torch.device | None) -> list[torch.Tensor]:
    """Tensors that the graph holds as attributes, in the order of their nodes.

    Those of the CPU are copied to ``device`` (None: the current one); 0-d ones are numbers and
    stay.
    """
    values = [attribute(n) for n in gm.graph.nodes if n.op == "get_attr"]
    return [to_device(v, device) for v in values if isinstance(v, torch.Tensor)]


def to_device(value: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """A CPU tensor's copy on the device, unless it is 0-d; any other tensor itself."""
    if value.device.type != "cpu" or value.dim() == 0:
        return value
    return value.detach().to(device or "neuron")


def host_inputs(gm: GraphModule) -> list[int]:
    """Positions of the inputs that are dimensioned CPU tensors, to be copied at every call."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return [i for i, n in enumerate(inputs) if on_host(n) and n.meta["val"].dim() > 0 and n.users]


def literal_results(gm: GraphModule) -> dict[int, Any]:
    """Results that are neither tensors nor sizes but plain values (None, numbers), by position."""
    (output,) = [n for n in gm.graph.nodes if n.op == "output"]
    return {i: item for i, item in enumerate(output.args[0]) if not isinstance(item, Node)}


def _function_name(target: Any) -> str:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(target.name())
    if callable(target):  # not its repr: that has an address
        return f"{target.__module__}.{target.__qualname__}"
    return str(target)


def canonical_text(gm: GraphModule) -> str:
    """The graph without names: equal graphs give equal text, also in another process.

    Functions of control flow are written out where they are named.
    """
    number = {node: i for i, node in enumerate(gm.graph.nodes)}
    lines = []
    for node in gm.graph.nodes:
        name = "" if node.op in ("placeholder", "output") else _function_name(node.target)
        if node.op == "get_attr":
            value = attribute(node)
            name = f"{{{canonical_text(value)}}}" if isinstance(value, GraphModule) else "constant"
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
        self.lines: list[str] = []  # of each program node
        self.uses_rng = False
        inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        inputs += [n for n in gm.graph.nodes if n.op == "get_attr" and not is_subgraph(n)]
        self.inputs = {node: i for i, node in enumerate(inputs)}
        traced = examples(gm)
        self.sizes = Sizes(traced, values[: len(traced)])
        for node, value in zip(inputs, values, strict=True):
            self.refs[node] = self.writer.argument(value, "")

    def run(self) -> tuple[ir.Program, planning.Shape]:
        result: tuple[ir.Program, planning.Shape] | None = None
        for node in self.gm.graph.nodes:
            try:
                if node.op == "call_function":
                    self.call_function(node)
                elif is_subgraph(node):
                    self.refs[node] = self.subgraph(attribute(node))
                elif node.op == "output":
                    result = self.finish(node)
            except Exception as error:
                raise PlanningError(
                    f"cannot plan `{node.format_node()}`{line_of(node)}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        if result is None:
            raise PlanningError("the graph has no output node")
        return result

    def call_function(self, node: Node) -> None:
        if is_number(node.meta.get("val")):
            self.refs[node] = self.number(node)
            return
        if node.target is operator.getitem:
            self.refs[node] = self.refs[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if is_idle_check(node):
            return
        if is_copy(node):
            self.copy_into_input(node)
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.control(node)
            return
        name = node.target.name()  # type: ignore[union-attr]
        schema = node.target._schema  # type: ignore[union-attr]
        args = []
        for i, a in enumerate(schema.arguments):
            kind = str(a.real_type)
            kind = kind[len("Optional[") : -1] if kind.startswith("Optional[") else kind
            if i < len(node.args):
                value = node.args[i]
            else:
                value = node.kwargs.get(a.name, a.default_value)
            plumbing = kind in PLUMBING or a.name == "pin_memory"
            args.append(ir.Constant(None) if plumbing else self.reference(value))
        if name in _STRIDED:
            self.restride(node, args)
        outputs: list[ir.Array] = []
        index = len(self.nodes)
        self.refs[node] = self.results(node.meta.get("val"), index, outputs)
        self.uses_rng = self.uses_rng or overloads.table()[name].uses_rng
        self.nodes.append(ir.Node(name, tuple(args), tuple(outputs)))
        self.lines.append(f"`{node.format_node()}`{line_of(node)}")

    def number(self, node: Node) -> Any:
        """A number that is known, or one that a function of control flow computes."""
        if node.target == torch.ops.aten._local_scalar_dense.default:
            return self.refs[node.args[0]]  # type: ignore[index]
        inputs = [self.reference(a) for a in node.args]
        if node.target not in ARITHMETIC or all(isinstance(i, ir.Constant) for i in inputs):
            return ir.Constant(self.sizes.number(node.meta["val"]))
        name = ARITHMETIC[node.target]
        scale = [ir.Constant(1)] if "mul" not in name else []
        self.nodes.append(ir.Node(name, (*inputs, *scale), (ir.Array("int64", ()),)))
        self.lines.append(f"`{node.format_node()}`{line_of(node)}")
        return ir.Result(len(self.nodes) - 1)

    def control(self, node: Node) -> None:
        """A higher-order operator: its functions are among its arguments."""
        outputs: list[ir.Array] = []
        args = tuple(self.reference(a) for a in node.args)
        self.refs[node] = self.results(node.meta["val"], len(self.nodes), outputs)
        if control_name(node) == "higher_order::while_loop_stack_output":
            args += (ir.Constant(outputs[0].shape[0]),)
        self.nodes.append(ir.Node(control_name(node), args, tuple(outputs)))
        self.lines.append(f"`{node.format_node()}`{line_of(node)}")

    def subgraph(self, gm: GraphModule) -> ir.Subgraph:
        """A function that a higher-order operator takes, with nodes of its own."""
        outer = self.nodes, self.lines, self.refs
        self.nodes, self.lines, self.refs = [], [], {}
        try:
            placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
            for i, node in enumerate(placeholders):
                value = node.meta.get("val")
                number = is_number(value)
                self.refs[node] = ir.Constant(self.sizes.number(value)) if number else ir.Input(i)
            for node in gm.graph.nodes:
                if node.op == "call_function":
                    self.call_function(node)
                elif is_subgraph(node):
                    self.refs[node] = self.subgraph(attribute(node))
                elif node.op == "output":
                    results = node.args[0] if isinstance(node.args[0], (tuple, list)) else node.args
                    return ir.Subgraph(tuple(self.nodes), tuple(self.reference(r) for r in results))
            raise ValueError("a function of control flow has no output")
        finally:
            self.nodes, self.lines, self.refs = outer

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
        if isinstance(value, SYMBOLIC):
            return ir.Constant(self.sizes.number(value))
        return ir.Constant(value)

    def restride(self, node: Node, args: list[Any]) -> None:
        """Give ``as_strided`` and its scatter a row-major base and an offset from its start.

        PyTorch counts the offset from the start of the storage, and any tensor with that storage
        will do as the base; the rules count in the base as an array.
        """
        size, stride, offset = (ref.value for ref in args[-3:])
        base: Any = node.args[0]
        if offset is None:
            offset = self.sizes.value(base.meta["val"].storage_offset())
        last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        while True:
            value = self.concrete(base.meta["val"])
            start = offset - self.sizes.value(base.meta["val"].storage_offset())
            inside = start >= 0 and (0 in size or start + last < value.numel())
            if value.is_contiguous() and inside:
                args[0], args[-1] = self.refs[base], ir.Constant(start)
                return
            reads = node.target is not torch.ops.aten.as_strided_scatter.default
            parent = _base(base)
            if parent is None and reads and start >= 0:
                flat = self.flat(base, value, start + last + 1)
                if flat is not None:
                    args[0], args[-1] = flat, ir.Constant(start)
                    return
            if parent is None or not reads:
                raise NotImplementedError(
                    f"{node.target} of a tensor with sizes {tuple(value.shape)} and strides "
                    f"{value.stride()}, which has no contiguous base in the graph"
                )
            base = parent

    def flat(self, base: Node, value: torch.Tensor, span: int) -> Any:
        """The first ``span`` elements of a base's storage in their order there, or None."""
        read = self.refs[base]
        if isinstance(read, ir.Read):
            view = dataclasses.replace(read.view, sizes=(span,), strides=(1,), box=False)
            return dataclasses.replace(read, view=view, zero_dim=False)
        order = memory_order(value)
        if order is None or span > value.numel():
            return None
        shape = tuple(value.shape[i] for i in order)
        self.nodes.append(ir.Node(
            "aten::permute", (read, ir.Constant(order)), (ir.Array(dtype_name(value.dtype), shape),)
        ))  # fmt: skip
        self.lines.append(self.lines[-1] if self.lines else "")
        return ir.Result(len(self.nodes) - 1)

    def copy_into_input(self, node: Node) -> None:
        """``copy_(input, value)``: the form that AOTAutograd gives an input's mutation."""
        target_node, source = node.args[:2]
        read = self.refs[target_node]  # type: ignore[index]
        if not isinstance(read, ir.Read):
            raise RuntimeError(f"{node.name}: only inputs of the graph can be mutated")
        value = self.reference(source)
        if value != read:
            self.writes.append(ir.Write(read.param, read.view, value))
        self.refs[node] = value

    def finish(self, node: Node) -> tuple[ir.Program, planning.Shape]:
        results = _Results(self)
        for item in node.args[0]:  # type: ignore[union-attr]
            results.add(item)
        program = ir.Program(
            self.writer.params,
            tuple(self.nodes),
            tuple(results.outputs),
            tuple(self.writes),
            uses_rng=self.uses_rng,
            exact_float64=target.exact_float64(),
            e4m3_max=target.current().e4m3_max,
        )
        writes = list(dict.fromkeys(w.param for w in self.writes))
        return program, planning.Shape(results.planned, results.returns, writes, self.uses_rng)

    def concrete(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            self.sizes.values(value.shape),
            self.sizes.values(value.stride()),
            dtype=value.dtype,
            device="meta",
        )


class _Results:
    """What a graph returns: new buffers, its own inputs, and views of either.

    A result shares its storage with whatever it shares it with in eager: views of inputs stay
    views, and so do views of what the graph computes, if their base is a result, too, or if their
    strides could not be had otherwise. Another lone view is stored by itself, without its base.
    """

    def __init__(self, translator: _Translator) -> None:
        self.graph = translator
        self.outputs: list[ir.Output] = []
        self.planned: list[Any] = []
        self.returns: list[Any] = []
        self._placed: dict[Node, int] = {}
        (output,) = [n for n in translator.gm.graph.nodes if n.op == "output"]
        items = {n for n in output.args[0] if isinstance(n, Node) and _is_tensor(n)}
        self._sharing = collections.Counter(root_of(item) for item in items)

    def add(self, item: Any) -> None:
        """The next result."""
        sizes = self.graph.sizes
        if not isinstance(item, Node):
            self.returns.append(["undefined", 0])  # a literal: the caller has it
            return
        if is_copy(item):
            item = item.args[0]
        value = item.meta.get("val")
        root = root_of(item) if _is_tensor(item) else item
        if item in self.graph.inputs:
            self.returns.append(["argument", self.graph.inputs[item]])
        elif value is None:
            self.returns.append(["undefined", 0])
        elif not isinstance(value, torch.Tensor):
            self.returns.append(["int", sizes.value(value)])
        elif root in self.graph.inputs:
            start = sizes.value(root.meta["val"].storage_offset())
            self.returns.append(["view", self.graph.inputs[root], *self.strided(value, start)])
        elif root is not item and self.is_stored_as_traced(root) and (
            self._sharing[root] > 1 or not _is_dense(self.graph.concrete(value))
        ):  # fmt: skip
            self.returns.append(["output_view", self.place(root), *self.strided(value, 0)])
        else:
            self.returns.append(["output", self.place(item)])

    def strided(self, value: torch.Tensor, start: int) -> tuple[list[int], list[int], int]:
        """Sizes, strides and offset, the last from ``start``."""
        sizes = self.graph.sizes
        return (
            list(sizes.values(value.shape)),
            list(sizes.values(value.stride())),
            sizes.value(value.storage_offset()) - start,
        )

    def is_stored_as_traced(self, root: Node) -> bool:
        """Whether a root's buffer has the strides that its views were traced with."""
        return _is_tensor(root) and _is_dense(self.graph.concrete(root.meta["val"]))

    def place(self, item: Node) -> int:
        """The output that stores a node's value."""
        if item not in self._placed:
            self._placed[item] = len(self.outputs)
            layout = self.graph.concrete(item.meta["val"])
            perm = memory_order(layout)
            self.outputs.append(ir.Output(self.graph.refs[item], perm))
            strides = list(layout.stride()) if perm else []
            self.planned.append([dtype_name(layout.dtype), list(layout.shape), strides])
        return self._placed[item]


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_dense(value: torch.Tensor) -> bool:
    return value.is_contiguous() or memory_order(value) is not None


def root_of(item: Node) -> Node:
    """The node whose storage a node's value shares, as far as it is traced as the same dtype."""
    root = item
    while (base := _base(root)) is not None:
        root = base
    return root


def _base(node: Node) -> Node | None:
    """What a node's value is a view of, or None. `reshape` is a view at times: storages tell."""
    source = node
    if node.op == "call_function" and node.target is operator.getitem:
        source = node.args[0]  # type: ignore[assignment]  # `split` and its like
    if source.op != "call_function" or not source.all_input_nodes:
        return None
    base = source.all_input_nodes[0]
    value, seen = node.meta.get("val"), base.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(seen, torch.Tensor):
        return None
    same = value.untyped_storage()._cdata == seen.untyped_storage()._cdata
    return base if same and value.dtype == seen.dtype else None


def write(
    gm: GraphModule, call: dict[str, Any], values: list[Any]
) -> tuple[ir.Program, planning.Shape, list[str]]:
    """The program of a graph for one call, what its plan must know, and where its nodes come from.

    ``values`` are the graph's inputs followed by its constants.

    Raises:
        PlanningError: the graph cannot be written as a program.
    """
    translator = _Translator(gm, call, values)
    program, shape = translator.run()
    return program, shape, translator.lines
