"""The proof that a graph may run on padded inputs, and its rewriting so that it does.

Every dimension of every value is a product of factors, outermost first. A factor that has a padded
symbol is longer than it should be: its first elements, as many as its true length, are those of
the graph without padding, and the others hold anything, infinities and NaN included. A rule an
operator keeps that true. Where an operator would mix the others in, they are replaced first by what
is neutral for it (zero in sums and products, the lowest value in maxima and softmax, an ignored
class, index 0). The true lengths are inputs of the graph, so its executable is one for all of them.
An operator without such a rule may touch no padded dimension.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo import obstacles
from torch_neuronx.dynamo.buckets import Argument, Factors, Layout, Padded, Result, Spec
from torch_neuronx.dynamo.graph import root_of
from torch_neuronx.dynamo.sizes import SYMBOLIC, is_number

aten = torch.ops.aten


class BucketingError(RuntimeError):
    """A graph may not run padded; names the node and the Python line."""


class UnsafeError(Exception):
    """What an operator would mix in."""


def size_of(expression: str, *sizes: int) -> int:
    """Marks a size in a graph: an expression of the sizes ``n0``, ``n1``..., never evaluated."""
    raise NotImplementedError(expression)


def expression_of(size: Any) -> Any:
    """A size as an int, or a sympy expression."""
    if not isinstance(size, SYMBOLIC):
        return size
    return plain(size.node.expr)


def plain(expression: Any) -> Any:
    return int(expression) if expression.is_Integer else expression


def pad(
    gm: GraphModule,
    specs: Mapping[sympy.Symbol, Spec],
    kept: dict[str, Layout],
    returned: int | None,
) -> Padded | None:
    """The graph for padded sizes; None if it has no padded symbol.

    ``kept`` are layouts of values that a forward graph keeps for its backward graph, by name; a
    forward graph, of whose results the first ``returned`` are the caller's, adds to it.

    Raises:
        BucketingError: an operator has no rule for padded dimensions, or not for these.
    """
    from torch_neuronx.dynamo import padding_rules  # noqa: F401  # fills RULES

    prover = Prover(gm, specs, kept, returned)
    used = {s for n in gm.graph.nodes for s in prover.symbols_of(n.meta.get("val"))}
    if not used:
        return None
    return prover.run(used)


class Prover:
    """One walk over a graph; ``layouts`` has what a copied node's value is made of."""

    def __init__(
        self, gm: GraphModule, specs: Mapping[sympy.Symbol, Spec], kept: dict[str, Layout],
        returned: int | None,
    ) -> None:  # fmt: skip
        self.gm = gm
        self.specs = specs
        self.kept = kept
        self.returned = returned
        self.graph = Graph()
        self.copies: dict[Node, Node] = {}
        self.layouts: dict[Node, Any] = {}  # by copy: a layout, a list of layouts, or None
        self.lengths: dict[Any, Node] = {}
        self.masks: dict[Any, Node] = {}
        self.sizes: dict[Any, Node] = {}
        self.fake_mode: Any = None
        self.device: Any = None
        self.last_input: Node | None = None

    # --- what is padded ------------------------------------------------------------------------

    def symbols_of(self, value: Any) -> set[sympy.Symbol]:
        """Padded symbols in a node's value."""
        if isinstance(value, (list, tuple)):
            return {s for v in value for s in self.symbols_of(v)}
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        free = {s for n in sizes if isinstance(n, SYMBOLIC) for s in n.node.expr.free_symbols}
        return free & set(self.specs)

    def is_padded(self, factor: Any) -> bool:
        return not isinstance(factor, int) and bool(factor.free_symbols & set(self.specs))

    def has_padding(self, factors: Factors) -> bool:
        return any(self.is_padded(f) for f in factors)

    def concrete(self, expression: Any) -> Any:
        """An expression in the padded symbols alone: the others are constant in an executable."""
        expression = sympy.sympify(expression)
        others = expression.free_symbols - set(self.specs)
        known = self.fake_mode.shape_env.backed_var_to_val
        return expression.xreplace({s: known[s] for s in others if s in known})

    def any_padding(self, node: Any) -> bool:
        layout = self.layouts.get(node)
        return layout is not None and any(self.has_padding(d) for d in layout)

    # --- the walk ------------------------------------------------------------------------------

    def run(self, used: set[sympy.Symbol]) -> Padded:
        arguments = []
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                arguments.append(self.placeholder(node))
        results: tuple[Result, ...] = ()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                continue
            try:
                if node.op == "output":
                    results = self.output(node)
                elif node.op == "get_attr":
                    self.copy(node, None if obstacles.is_subgraph(node) else self.static(node))
                else:
                    self.call(node)
            except UnsafeError as why:
                raise BucketingError(
                    f"torch.compile(backend='neuron') cannot pad this graph to buckets: {why} in "
                    f"`{node.format_node()}`{obstacles.line_of(node)}. Change that line, leave its "
                    "dimension out of options['buckets'], or compile that function without buckets."
                ) from None
        gm = GraphModule(self.gm, self.graph)
        specs = {s: self.specs[s] for s in used}
        return Padded(gm, tuple(arguments), tuple(self.lengths), results, specs, self.guards(used))

    def guards(self, used: set[sympy.Symbol]) -> Callable[[Mapping[sympy.Symbol, Any]], bool]:
        """Whether everything that tracing took for granted holds with other sizes, too."""
        environment = self.fake_mode.shape_env
        expressions = [g.expr for g in environment.guards if g.expr.free_symbols & used]
        ranges = {s: environment.var_to_range[s] for s in used if s in environment.var_to_range}

        def allowed(values: Mapping[sympy.Symbol, Any]) -> bool:
            inside = all(r.lower <= values[s] <= r.upper for s, r in ranges.items() if s in values)
            return inside and all(e.xreplace(dict(values)) != sympy.false for e in expressions)

        return allowed

    def placeholder(self, node: Node) -> Argument:
        value = node.meta.get("val")
        copied = self.last_input = self.graph.node_copy(node)
        self.copies[node] = copied
        if not isinstance(value, torch.Tensor):
            self.layouts[copied] = None
            return Argument(None, expression_of(value) if is_number(value) else None)
        self.fake_mode = self.fake_mode or getattr(value, "fake_mode", None)
        if value.device.type == "neuron":
            self.device = self.device or value.device
        layout = self.kept.get(node.name) if self.returned is None else None
        if layout is not None and len(layout) != value.dim():
            layout = None
        apart = layout is not None and any(len(d) > 1 for d in layout)
        layout = layout or tuple((expression_of(n),) for n in value.shape)
        self.layouts[copied] = layout
        strides = tuple(expression_of(n) for n in value.stride())
        return Argument(layout, apart=apart, strides=strides)

    def static(self, node: Node) -> Layout:
        return tuple((int(n),) for n in obstacles.attribute(node).shape)

    def copy(self, node: Node, layout: Any) -> Node:
        copied = self.graph.node_copy(node, self.copies.__getitem__)
        self.copies[node] = copied
        self.layouts[copied] = layout
        return copied

    def call(self, node: Node) -> None:
        value = node.meta.get("val")
        if is_number(value):
            self.copy(node, None)
            return
        if node.target is operator.getitem:
            source = self.copies[node.args[0]]  # type: ignore[index]
            self.copy(node, self.layouts[source][node.args[1]])
            return
        padded = self.symbols_of(value) or any(
            self.any_padding(self.copies[n]) or self.symbols_of_number(n)
            for n in node.all_input_nodes
        )
        if not padded:
            self.copy(node, self.plain(value))
            return
        name = str(getattr(node.target, "name", str)()).removeprefix("aten::")
        seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if seeded and name not in RULES:
            raise UnsafeError("a padded draw would take other random numbers")
        if obstacles.is_copy(node):
            raise UnsafeError("a padded input is written to")
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsafeError("there is no rule for padded dimensions")
        args = self.arguments(node)
        found = RULES.get(name)
        if found is not None:
            made = found(self, node, args)
        elif torch.Tag.pointwise in node.target.tags or name in _POINTWISE:
            made = self.pointwise(node, args)
        elif name in _LEADING:
            made = self.leading(node, args)
        else:
            raise UnsafeError("there is no rule for padded dimensions")
        self.copies[node] = made

    def symbols_of_number(self, node: Node) -> set[sympy.Symbol]:
        value = node.meta.get("val")
        return self.symbols_of(value) if is_number(value) else set()

    def plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tuple((expression_of(n),) for n in value.shape)
        if isinstance(value, (list, tuple)):
            return [self.plain(v) for v in value]
        return None

    def arguments(self, node: Node) -> list[Any]:
        """A call's arguments in the schema's order, as copies."""
        found = []
        for i, a in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
            value = node.args[i] if i < len(node.args) else node.kwargs.get(a.name, a.default_value)
            found.append(torch.fx.map_arg(value, self.copies.__getitem__))
        return found

    def emit(self, node: Node, args: Sequence[Any], layout: Any, target: Any = None) -> Node:
        """The call again with these arguments."""
        schema = (target or node.target)._schema  # type: ignore[union-attr]
        positional, named = [], {}
        for a, value in zip(schema.arguments, args, strict=True):
            if a.kwarg_only:
                named[a.name] = value
            else:
                positional.append(value)
        made = self.graph.call_function(target or node.target, tuple(positional), named)
        made.meta = dict(node.meta)
        self.layouts[made] = layout
        return made

    def new(self, target: Any, args: tuple[Any, ...], layout: Layout, result: torch.dtype,
            **kwargs: Any) -> Node:  # fmt: skip
        """A call that the graph did not have."""
        made = self.graph.call_function(target, args, kwargs)
        sizes = [n.meta["val"] if isinstance(n, Node) else n for n in map(self.size, layout)]
        with self.fake_mode:
            made.meta["val"] = torch.empty(sizes, dtype=result, device=self.device)
        self.layouts[made] = layout
        return made

    def size(self, factors: Factors) -> Any:
        """A dimension's size: a number, or a node whose value is symbolic."""
        whole = math.prod(factors, start=sympy.Integer(1))
        if whole.is_Integer:
            return int(whole)
        if whole not in self.sizes:
            symbols = sorted(whole.free_symbols, key=str)
            names = {s: sympy.Symbol(f"n{i}") for i, s in enumerate(symbols)}
            text = str(whole.xreplace(names))
            made = self.graph.call_function(size_of, (text, *map(self.symbol, symbols)))
            made.meta["val"] = self.fake_mode.shape_env.create_symintnode(whole, hint=None)
            self.layouts[made] = None
            self.sizes[whole] = made
        return self.sizes[whole]

    def symbol(self, symbol: sympy.Symbol) -> Node:
        """A node whose value is a symbol's."""
        for node in self.gm.graph.nodes:
            value = node.meta.get("val") if node.op == "placeholder" else None
            if is_number(value) and expression_of(value) == symbol:
                return self.copies[node]
        for node in self.gm.graph.nodes:
            value = node.meta.get("val") if node.op == "placeholder" else None
            for dim, n in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if expression_of(n) == symbol:
                    made = self.graph.call_function(aten.sym_size.int, (self.copies[node], dim))
                    made.meta["val"] = n
                    self.layouts[made] = None
                    return made
        raise UnsafeError(f"the size {symbol} is none of an input's")

    # --- lengths and masks ---------------------------------------------------------------------

    def length(self, expression: Any) -> Node:
        """The graph's input with the true value of an expression."""
        if expression not in self.lengths:
            kind = torch.int64 if expression.is_integer else torch.float64
            with self.graph.inserting_after(self.last_input):
                made = self.graph.placeholder(f"length_{len(self.lengths)}")
            with self.fake_mode:
                made.meta["val"] = torch.empty((), dtype=kind, device="cpu")
            self.last_input = made
            self.layouts[made] = ()
            self.lengths[expression] = made
        return self.lengths[expression]

    def mask(self, factors: Factors) -> Node:
        """Which positions of a dimension are true ones: bool, one-dimensional."""
        if factors in self.masks:
            return self.masks[factors]
        layout = (factors,)
        whole = self.size(factors)
        device = {"device": self.device}
        at = self.new(
            aten.arange.default, (whole,), layout, torch.int64, dtype=torch.int64, **device
        )
        result: Node | None = None
        for i, factor in enumerate(factors):
            if not self.is_padded(factor):
                continue
            where = at
            if i + 1 < len(factors):
                inner = self.size(factors[i + 1 :])
                where = self.new(aten.floor_divide.Scalar, (at, inner), layout, torch.int64)
            if i > 0:
                size = self.size((factor,))
                where = self.new(aten.remainder.Scalar, (where, size), layout, torch.int64)
            inside = self.new(aten.lt.Tensor, (where, self.length(factor)), layout, torch.bool)
            result = inside if result is None else self.new(
                aten.logical_and.default, (result, inside), layout, torch.bool)  # fmt: skip
        assert result is not None
        self.masks[factors] = result
        return result

    def masked(self, node: Any, neutral: Any, dims: Sequence[int] | None = None) -> Any:
        """A value with what is padded in ``dims`` (default: all) replaced by ``neutral``."""
        if node is None or not isinstance(node, Node):
            return node
        layout = self.layouts[node]
        rank = len(layout)
        dims = range(rank) if dims is None else [d % max(rank, 1) for d in dims]
        dtype = node.meta["val"].dtype
        for d in dims:
            if not self.has_padding(layout[d]):
                continue
            mask = self.mask(layout[d])
            shape = [self.size(layout[d]) if i == d else 1 for i in range(rank)]
            wide = tuple(layout[d] if i == d else (1,) for i in range(rank))
            mask = self.new(aten.view.default, (mask, shape), wide, torch.bool)
            other = (
                neutral
                if isinstance(neutral, Node)
                else self.new(
                    aten.scalar_tensor.default,
                    (neutral,),
                    (),
                    dtype,
                    dtype=dtype,
                    device=self.device,
                )
            )
            node = self.new(aten.where.self, (mask, node, other), layout, dtype)
        return node

    # --- rules ---------------------------------------------------------------------------------

    def agree(self, first: Layout, second: Layout) -> None:
        """Refuse arguments whose elements belong together and lie differently: ``(n, m)`` is padded
        within, ``(n * m,)`` at its end."""
        for d, (a, b) in enumerate(zip(first, second, strict=True)):
            if a != b and (self.has_padding(a) or self.has_padding(b)):
                raise UnsafeError(f"dimension {d} is padded differently in its arguments")

    def broadcast(self, nodes: Sequence[Any], rank: int) -> Layout:
        """The layout of an element-wise operator's result."""
        dims: list[Factors] = [(1,)] * rank
        for node in nodes:
            layout = self.layouts.get(node) or ()
            for d, factors in enumerate(layout, rank - len(layout)):
                if factors == (1,):
                    continue
                if dims[d] not in ((1,), factors):
                    padded = self.has_padding(dims[d]) or self.has_padding(factors)
                    if padded or math.prod(dims[d]) != math.prod(factors):
                        raise UnsafeError(f"dimension {d} is padded differently in its arguments")
                    continue
                dims[d] = factors
        return tuple(dims)

    def pointwise(self, node: Node, args: list[Any]) -> Node:
        target = node.target
        schema = target._schema  # type: ignore[union-attr]
        tensors = [a for a in args if isinstance(a, Node) and self.layouts.get(a) is not None]
        for i, (a, value) in enumerate(zip(schema.arguments, args, strict=True)):
            number = isinstance(value, Node) and is_number(value.meta.get("val"))
            if not number or not self.symbols_of(value.meta["val"]):
                continue
            kind = str(a.real_type)
            if kind not in ("Tensor", "number", "Scalar"):
                raise UnsafeError(f"argument {a.name} is a padded size")
            args[i] = self.length(value.meta["val"].node.expr)
            if kind != "Tensor":
                target = getattr(node.target.overloadpacket, "Tensor", None)  # type: ignore[union-attr]
                if target is None or len(target._schema.arguments) != len(args):
                    raise UnsafeError(f"argument {a.name} is a padded size")
        value = node.meta["val"]
        if isinstance(value, (list, tuple)):
            layouts = [
                self.broadcast(tensors, v.dim()) if isinstance(v, torch.Tensor) else None
                for v in value
            ]
            return self.emit(node, args, layouts, target)
        return self.emit(node, args, self.broadcast(tensors, value.dim()), target)

    def leading(self, node: Node, args: list[Any]) -> Node:
        """Operators that treat the elements of dimension 0 one by one."""
        for a in args:
            layout = self.layouts.get(a) if isinstance(a, Node) else None
            if layout and any(self.has_padding(d) for d in layout[1:]):
                raise UnsafeError("a dimension other than the first is padded")
        first = self.layouts[args[0]]
        value = node.meta["val"]
        several = isinstance(value, (list, tuple))
        layouts = [
            (first[0], *((expression_of(n),) for n in v.shape[1:]))
            for v in (value if several else [value])
        ]
        return self.emit(node, args, layouts if several else layouts[0])

    def output(self, node: Node) -> tuple[Result, ...]:
        results: list[Result] = []
        values: list[Any] = []
        roots = [root_of(n) for n in node.args[0] if isinstance(n, Node)]  # type: ignore[union-attr]
        for i, item in enumerate(node.args[0]):  # type: ignore[arg-type]
            value = item.meta.get("val") if isinstance(item, Node) else None
            if isinstance(item, Node) and obstacles.is_copy(item):
                results.append(Result())
            elif isinstance(item, Node) and item.op == "placeholder":
                results.append(Result(argument=list(self.copies).index(item)))
            elif isinstance(item, Node) and is_number(value):
                results.append(Result(expression=expression_of(value)))
                values.append(None)
                continue
            elif isinstance(item, Node) and root_of(item).op == "placeholder":
                layout = self.layouts.get(self.copies[item])
                regrouped = layout is not None and any(
                    len(d) > 1 and self.has_padding(d) for d in layout
                )
                apart = regrouped and self.returned is not None and i >= self.returned
                if apart:
                    self.kept[item.name] = layout
                results.append(self.view_of_input(item, root_of(item), layout if apart else None))
                values.append(None)
                continue
            else:
                layout = self.layouts.get(self.copies[item]) if isinstance(item, Node) else None
                padded = layout is not None and any(self.has_padding(d) for d in layout)
                regrouped = padded and any(len(d) > 1 for d in layout)
                if regrouped and roots.count(root_of(item)) > 1:  # type: ignore[arg-type]
                    raise UnsafeError(f"a padded view of another result, {item}, is regrouped")
                saved = self.returned is not None and i >= self.returned
                apart = saved and regrouped
                if saved and padded:
                    self.kept[item.name] = layout
                results.append(Result(layout=layout if padded else None, apart=apart))
            values.append(self.copies[item] if isinstance(item, Node) else item)
        self.graph.output(tuple(values))
        return tuple(results)

    def view_of_input(self, item: Node, source: Node, layout: Layout | None) -> Result:
        """A result that is to be taken from the caller's input, as it is; with ``layout`` it gets a
        dimension for every factor, as the backward graph takes it."""
        value, base = item.meta["val"], source.meta["val"]
        start = expression_of(value.storage_offset()) - expression_of(base.storage_offset())
        sizes: list[Any] = []
        strides: list[Any] = []
        whole = tuple((expression_of(n),) for n in value.shape)
        for factors, stride in zip(layout or whole, value.stride(), strict=True):
            inner = [math.prod(factors[k + 1 :], start=1) for k in range(len(factors))]
            sizes += factors
            strides += [expression_of(stride) * n for n in inner]
        strided = (tuple(sizes), tuple(strides), start)
        return Result(argument=list(self.copies).index(source), strided=strided)


Rule = Callable[[Prover, Node, list[Any]], Node]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


# Element-wise without PyTorch's tag, or whose result has the argument's shape and says nothing.
_POINTWISE = frozenset(
    {
        "_to_copy", "detach", "alias", "lift_fresh_copy", "zeros_like", "ones_like", "full_like",
        "empty_like", "fill.Scalar", "fill.Tensor", "tril", "triu", "leaky_relu_backward",
        "hardtanh_backward", "elu_backward", "softplus_backward", "log_sigmoid_forward",
        "_prelu_kernel", "isin.Tensor_Scalar",
    }
)  # fmt: skip

# One batch element after the other.
_LEADING = frozenset(
    {
        "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d",
        "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "pixel_shuffle",
        "pixel_unshuffle", "constant_pad_nd", "reflection_pad2d", "replication_pad2d",
    }
)  # fmt: skip
