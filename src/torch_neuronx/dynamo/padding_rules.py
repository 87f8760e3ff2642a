"""The rules of ``padding``: what each operator does with padded dimensions, or why it may not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv

from torch_neuronx.dynamo.buckets import Layout
from torch_neuronx.dynamo.padding import Prover, UnsafeError, expression_of, plain, rule
from torch_neuronx.dynamo.sizes import is_number

aten = torch.ops.aten

_SUMS = {
    "sum.dim_IntList": 0, "sum": 0, "prod.dim_int": 1, "prod": 1, "any.dim": 0, "any.dims": 0,
    "any": 0, "all.dim": 1, "all.dims": 1, "all": 1, "count_nonzero.dim_IntList": 0, "nansum": 0,
    "linalg_vector_norm": 0,
}  # fmt: skip


def _lowest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _dims(given: Any, rank: int) -> list[int]:
    """Dimensions of a reduction, all if none are given."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return list(range(rank))
    return [d % max(rank, 1) for d in (given if isinstance(given, (list, tuple)) else [given])]


def _named(node: Node, args: list[Any], name: str, default: Any = None) -> Any:
    schema = node.target._schema  # type: ignore[union-attr]
    return next((v for a, v in zip(schema.arguments, args, strict=True) if a.name == name), default)


def _reduced(layout: Layout, dims: Sequence[int], keep: bool) -> Layout:
    kept = [(1,) if d in dims else f for d, f in enumerate(layout) if keep or d not in dims]
    return tuple(kept)


def _reduction(self: Prover, node: Node, args: list[Any], neutral: Any) -> Node:
    layout = self.layouts[args[0]]
    dims = _dims(_named(node, args, "dim"), len(layout))
    made = _reduced(layout, dims, bool(_named(node, args, "keepdim", False)))
    args = [self.masked(args[0], neutral, dims), *args[1:]]
    several = isinstance(node.meta["val"], (list, tuple))
    return self.emit(node, args, [made] * len(node.meta["val"]) if several else made)


@rule(*_SUMS)
def _sum(self: Prover, node: Node, args: list[Any]) -> Node:
    name = node.target.name().removeprefix("aten::")  # type: ignore[union-attr]
    order = _named(node, args, "ord", 2)
    if not isinstance(order, (int, float)) or order <= 0:
        raise UnsafeError(f"zero is not neutral in a norm of order {order}")
    return _reduction(self, node, args, _SUMS[name])


@rule("amax", "max.dim", "max", "argmax", "logsumexp", "amin", "min.dim", "min", "argmin")
def _extreme(self: Prover, node: Node, args: list[Any]) -> Node:
    name = node.target.name().removeprefix("aten::")  # type: ignore[union-attr]
    dtype = args[0].meta["val"].dtype
    if name.startswith("arg") and _named(node, args, "dim") is None:
        raise UnsafeError("a position among all elements changes with padding")
    return _reduction(self, node, args, (_highest if "min" in name else _lowest)(dtype))


@rule("mean.dim", "mean")
def _mean(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    dims = _dims(_named(node, args, "dim"), len(layout))
    keep = bool(_named(node, args, "keepdim", False))
    value = node.meta["val"]
    count = math.prod((f for d in dims for f in layout[d]), start=sympy.Integer(1))
    if not self.is_padded(count):
        return self.emit(node, args, _reduced(layout, dims, keep))
    source = self.masked(args[0], 0, dims)
    wide = torch.float32 if value.dtype in (torch.bfloat16, torch.float16) else value.dtype
    made = _reduced(layout, dims, keep)
    total = self.new(aten.sum.dim_IntList, (source, dims, keep), made, wide, dtype=wide)
    mean = self.new(aten.div.Tensor, (total, self.length(count)), made, wide)
    if wide != value.dtype:
        mean = self.new(aten._to_copy.default, (mean,), made, value.dtype, dtype=value.dtype)
    mean.meta = dict(node.meta)
    return mean


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(self: Prover, node: Node, args: list[Any]) -> Node:
    args[0] = self.masked(args[0], -math.inf, [args[1]])
    return self.emit(node, args, self.layouts[args[0]])


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.broadcast(args[:2], len(self.layouts[args[0]]))
    args[:2] = [self.masked(a, 0, [args[2]]) for a in args[:2]]
    return self.emit(node, args, layout)


@rule("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
def _scan(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    dim = args[1] % max(len(layout), 1)
    if self.has_padding(layout[dim][1:]):
        raise UnsafeError(f"padding lies among the elements of dimension {dim}")
    several = isinstance(node.meta["val"], (list, tuple))
    return self.emit(node, args, [layout] * 2 if several else layout)


def _product(self: Prover, node: Node, args: list[Any], at: int, batch: int) -> Node:
    """A matrix product of arguments ``at`` and ``at + 1``, maybe added to argument 0."""
    a, b = args[at : at + 2]
    left, right = self.layouts[a], self.layouts[b]
    if left[-1] != right[batch] and (self.has_padding(left[-1]) or self.has_padding(right[batch])):
        raise UnsafeError("the summed dimension is padded differently in its arguments")
    self.agree(left[:batch], right[:batch])
    args[at] = self.masked(a, 0, [len(left) - 1])
    args[at + 1] = self.masked(b, 0, [batch])
    layout = (*left[:-1], *right[batch + 1 :])
    made = self.emit(node, args, layout)
    if at:
        self.broadcast([args[0], made], len(layout))
    return made


@rule("mm", "mv")
def _mm(self: Prover, node: Node, args: list[Any]) -> Node:
    return _product(self, node, args, 0, 0)


@rule("bmm")
def _bmm(self: Prover, node: Node, args: list[Any]) -> Node:
    return _product(self, node, args, 0, 1)


@rule("addmm")
def _addmm(self: Prover, node: Node, args: list[Any]) -> Node:
    return _product(self, node, args, 1, 0)


@rule("baddbmm")
def _baddbmm(self: Prover, node: Node, args: list[Any]) -> Node:
    return _product(self, node, args, 1, 1)


@rule("native_layer_norm", "_fused_rms_norm")
def _norm(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    axis = len(layout) - len(args[1])
    if any(self.has_padding(d) for d in layout[axis:]):
        raise UnsafeError("a normalised dimension is padded")
    statistics = (*layout[:axis], *((1,) for _ in layout[axis:]))
    count = len(node.meta["val"])
    return self.emit(node, args, [layout, *[statistics] * (count - 1)])


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _norm_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[1]]
    axis = len(layout) - len(args[2])
    if any(self.has_padding(d) for d in layout[axis:]):
        raise UnsafeError("a normalised dimension is padded")
    outer = range(axis)
    statistics = (3, 4) if "layer" in node.target.name() else (3,)  # type: ignore[union-attr]
    self.agree(self.layouts[args[0]], layout)
    for i in statistics:
        self.agree(self.layouts[args[i]][:axis], layout[:axis])
    for i in (0, 1, *statistics):
        args[i] = self.masked(args[i], 0, outer)
    layouts = [self.plain(v) for v in node.meta["val"]]
    layouts[0] = layout if layouts[0] is not None else None
    return self.emit(node, args, layouts)


@rule("native_group_norm")
def _group_norm(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    if any(self.has_padding(d) for d in layout[1:]):
        raise UnsafeError("a normalised dimension is padded")
    layouts = [layout, *((layout[0], (expression_of(v.shape[1]),)) for v in node.meta["val"][1:])]
    return self.emit(node, args, layouts)


@rule("native_group_norm_backward")
def _group_norm_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[1]]
    if any(self.has_padding(d) for d in layout[1:]):
        raise UnsafeError("a normalised dimension is padded")
    for i in range(4):
        self.agree(self.layouts[args[i]][:1], layout[:1])
        args[i] = self.masked(args[i], 0, [0])
    layouts = [self.plain(v) for v in node.meta["val"]]
    layouts[0] = layout if layouts[0] is not None else None
    return self.emit(node, args, layouts)


@rule("convolution")
def _convolution(self: Prover, node: Node, args: list[Any]) -> Node:
    made = [self.layouts.get(a) or () for a in args[:3]]
    if any(self.has_padding(d) for d in (*made[0][1:], *made[1], *made[2])):
        raise UnsafeError("a dimension other than the batch is padded")
    shape = node.meta["val"].shape
    return self.emit(node, args, (made[0][0], *((expression_of(n),) for n in shape[1:])))


@rule("convolution_backward")
def _convolution_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    grad, source, weight = (self.layouts[a] for a in args[:3])
    if any(self.has_padding(d) for d in (*grad[1:], *source[1:], *weight)):
        raise UnsafeError("a dimension other than the batch is padded")
    self.agree(grad[:1], source[:1])
    args[:2] = [self.masked(a, 0, [0]) for a in args[:2]]
    layouts = [self.plain(v) for v in node.meta["val"]]
    layouts[0] = source if layouts[0] is not None else None
    return self.emit(node, args, layouts)


@rule("embedding")
def _embedding(self: Prover, node: Node, args: list[Any]) -> Node:
    weight = self.layouts[args[0]]
    if self.has_padding(weight[0]):
        raise UnsafeError("the table is padded, so that a wrong index would not be noticed")
    args[1] = self.masked(args[1], 0)
    return self.emit(node, args, (*self.layouts[args[1]], *weight[1:]))


@rule("embedding_dense_backward")
def _embedding_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    rank = len(self.layouts[args[1]])
    self.agree(self.layouts[args[0]][:rank], self.layouts[args[1]])
    args[0], args[1] = self.masked(args[0], 0, range(rank)), self.masked(args[1], 0)
    return self.emit(node, args, self.plain(node.meta["val"]))


@rule("index.Tensor")
def _index(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    given = [i for i, x in enumerate(args[1]) if x is not None]
    if given != list(range(given[0], given[-1] + 1)):
        raise UnsafeError("indices of dimensions that are apart have no rule")
    if any(self.has_padding(layout[i]) for i in given):
        raise UnsafeError("an indexed dimension is padded")
    if any(args[1][i].meta["val"].dtype in (torch.bool, torch.uint8) for i in given):
        raise UnsafeError("masks as indices have no rule")
    rank = max(len(self.layouts[args[1][i]]) for i in given)
    between = self.broadcast([args[1][i] for i in given], rank)
    args[1] = [self.masked(x, 0) if x is not None else None for x in args[1]]
    return self.emit(node, args, (*layout[: given[0]], *between, *layout[given[-1] + 1 :]))


@rule("gather")
def _gather(self: Prover, node: Node, args: list[Any]) -> Node:
    layout, index = self.layouts[args[0]], self.layouts[args[2]]
    dim = args[1] % max(len(layout), 1)
    if self.has_padding(layout[dim]):
        raise UnsafeError("the gathered dimension is padded, so a wrong index would not be noticed")
    for d, (a, b) in enumerate(zip(layout, index, strict=True)):
        if d != dim and a != b and (self.has_padding(a) or self.has_padding(b)):
            raise UnsafeError(f"dimension {d} is padded differently in its arguments")
    args[2] = self.masked(args[2], 0)
    return self.emit(node, args, index)


@rule("nll_loss_forward")
def _nll_loss(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    if self.has_padding(layout[-1]):
        raise UnsafeError("the classes are padded")
    self.agree(layout[:-1], self.layouts[args[1]])
    args[1] = self.masked(args[1], args[4])
    return self.emit(node, args, [layout[:-1] if node.meta["val"][0].dim() else (), ()])


@rule("nll_loss_backward")
def _nll_loss_backward(self: Prover, node: Node, args: list[Any]) -> Node:
    grad, layout, target = (self.layouts[a] for a in args[:3])
    self.agree(layout[:-1], target)
    if grad:
        self.agree(grad, target)
    args[2] = self.masked(args[2], args[5])
    return self.emit(node, args, layout)


@rule("_scaled_dot_product_fused_attention_overrideable")
def _attention(self: Prover, node: Node, args: list[Any]) -> Node:
    query, key, value, bias, dropout, causal = args[:6]
    q, k, v = (self.layouts[a] for a in (query, key, value))
    if dropout:
        raise UnsafeError("a padded draw would take other random numbers")
    if self.has_padding(q[3]) or self.has_padding(v[3]) or k[2] != v[2]:
        raise UnsafeError("the width of heads is padded")
    if causal and q[2] != k[2]:
        raise UnsafeError("queries and keys of causal attention are padded differently")
    self.agree(q[:2], k[:2])
    self.agree(k[:2], v[:2])
    if bias is not None:
        scores = (*q[:3], k[2])
        for a, b in zip(self.layouts[bias][::-1], scores[::-1], strict=False):
            self.agree((b,), (b if a == (1,) else a,))
    if self.has_padding(k[2]):
        args[1], args[2] = self.masked(key, 0, [2]), self.masked(value, 0, [2])
        if not causal:
            shape = [1, 1, 1, self.size(k[2])]
            wide = ((1,), (1,), (1,), k[2])
            mask = self.new(aten.view.default, (self.mask(k[2]), shape), wide, torch.bool)
            args[3] = mask if bias is None else self.masked(
                bias, _lowest(bias.meta["val"].dtype), [-1])  # fmt: skip
            if bias is not None and self.layouts[bias][-1] != k[2]:
                raise UnsafeError("the mask is padded differently than the keys")
    first = (*q[:3], v[3])
    layouts: list[Any] = [None] * len(node.meta["val"])
    layouts[0], layouts[1] = first, q[:3]
    for i, x in enumerate(node.meta["val"][2:], 2):
        layouts[i] = () if isinstance(x, torch.Tensor) else None
    return self.emit(node, args, layouts)


@rule("scalar_tensor")
def _scalar(self: Prover, node: Node, args: list[Any]) -> Node:
    value, length = node.meta["val"], self.length(args[0].meta["val"].node.expr)
    dtype = {"dtype": value.dtype}
    if value.device.type == "cpu":
        made = self.new(aten._to_copy.default, (length,), (), value.dtype, **dtype)
    else:
        device = {"device": self.device}
        zero = self.new(aten.zeros.default, ([],), (), value.dtype, **dtype, **device)
        made = self.new(aten.add.Tensor, (zero, length), (), value.dtype)
    made.meta = dict(node.meta)
    return made


# --- views and creation ------------------------------------------------------------------------


@rule("view", "_unsafe_view", "reshape")
def _view(self: Prover, node: Node, args: list[Any]) -> Node:
    refused = UnsafeError("sizes are regrouped across a padded dimension")
    flat = [f for d in self.layouts[args[0]] for f in d if f != 1]
    made = []
    for size in node.meta["val"].shape:
        want = expression_of(size)
        got, factors = sympy.Integer(1), []
        while (rest := sympy.cancel(self.concrete(want) / self.concrete(got))) != 1:
            if not flat:
                raise refused
            factor = flat.pop(0)
            have = self.concrete(factor)
            if not self.is_padded(factor) and not rest.is_Integer:
                pass  # what is left of this dimension is padded: this factor lies before it
            elif not self.is_padded(factor) and rest < have:
                if have % rest:
                    raise refused
                part = FloorDiv(sympy.sympify(want), got) if factors else sympy.sympify(want)
                flat.insert(0, plain(FloorDiv(sympy.sympify(factor), part)))
                factor = plain(part)
            factors.append(factor)
            got = got * factor
            if len(factors) > 64:
                raise refused
        made.append(tuple(factors) or (1,))
    if any(self.concrete(f) != 1 for f in flat):
        raise refused
    return self.emit(node, args, tuple(made))


@rule("permute", "transpose.int", "t", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims")
def _move(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = list(self.layouts[args[0]])
    name = node.target.name().removeprefix("aten::").partition(".")[0]  # type: ignore[union-attr]
    rank = len(layout)
    if name == "permute":
        made = [layout[d] for d in args[1]]
    elif name == "t":
        made = layout[::-1]
    elif name == "transpose":
        made = layout
        a, b = (d % rank for d in args[1:3])
        made[a], made[b] = made[b], made[a]
    elif name == "unsqueeze":
        made = layout
        made.insert(args[1] % (rank + 1), (1,))
    else:
        dims = _dims(args[1] if len(args) > 1 else None, rank)
        made = [f for d, f in enumerate(layout) if d not in dims or f != (1,)]
    return self.emit(node, args, tuple(made))


@rule("expand")
def _expand(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    shape = node.meta["val"].shape
    made = [(expression_of(n),) for n in shape]
    for d, factors in enumerate(layout, len(shape) - len(layout)):
        if factors != (1,):
            made[d] = factors
    return self.emit(node, args, tuple(made))


@rule("select.int")
def _select(self: Prover, node: Node, args: list[Any]) -> Node:
    source, dim, index = args
    layout = self.layouts[source]
    dim %= len(layout)
    made = layout[:dim] + layout[dim + 1 :]
    at = index.meta["val"].node.expr if isinstance(index, Node) else index
    if not self.has_padding(layout[dim]):
        if self.is_padded(at):
            raise UnsafeError("the index is a padded size")
        return self.emit(node, args, made)
    if isinstance(at, int) and at >= 0:
        return self.emit(node, args, made)
    if len(layout[dim]) != 1:
        raise UnsafeError("an element is taken from the end of a padded dimension")
    if isinstance(at, int):
        at = layout[dim][0] + at
    value = node.meta["val"]
    zero = self.new(aten.zeros.default, ([1],), ((1,),), torch.int64, dtype=torch.int64,
                    device=self.device)  # fmt: skip
    where = self.new(aten.add.Tensor, (zero, self.length(at)), ((1,),), torch.int64)
    kept = (*layout[:dim], (1,), *layout[dim + 1 :])
    taken = self.new(aten.index_select.default, (source, dim, where), kept, value.dtype)
    result = self.new(aten.squeeze.dim, (taken, dim), made, value.dtype)
    result.meta = dict(node.meta)
    return result


@rule("slice.Tensor")
def _slice(self: Prover, node: Node, args: list[Any]) -> Node:
    source, dim, start, _end, _step = args
    layout = self.layouts[source]
    dim %= len(layout)
    size = node.meta["val"].shape[dim]
    if not self.has_padding(layout[dim]) and not self.symbols_of(size):
        return self.emit(node, args, (*layout[:dim], (expression_of(size),), *layout[dim + 1 :]))
    if sympy.expand(sympy.sympify(expression_of(size)) - math.prod(layout[dim], start=1)) == 0:
        return self.emit(node, args, layout)
    if len(layout[dim]) != 1 or not isinstance(start or 0, int) or (start or 0) < 0:
        raise UnsafeError("it begins at a padded size")
    return self.emit(node, args, (*layout[:dim], (expression_of(size),), *layout[dim + 1 :]))


@rule("slice_scatter")
def _slice_scatter(self: Prover, node: Node, args: list[Any]) -> Node:
    base, source, dim, start, end, step = args
    layout, part = self.layouts[base], self.layouts[source]
    dim %= len(layout)
    if step != 1 or not isinstance(start or 0, int) or (start or 0) < 0:
        raise UnsafeError("it begins at a padded size")
    if len(layout[dim]) != 1 or len(part[dim]) != 1:
        raise UnsafeError("the dimension is made of several")
    for d, (a, b) in enumerate(zip(layout, part, strict=True)):
        if d != dim and a != b and (self.has_padding(a) or self.has_padding(b)):
            raise UnsafeError(f"dimension {d} is padded differently in its arguments")
    if self.has_padding(part[dim]) and part[dim] != layout[dim]:
        dtype = node.meta["val"].dtype
        old = self.new(aten.slice.Tensor, (base, dim, start, end, 1), part, dtype)
        args[1] = self.masked(source, old, [dim])
    return self.emit(node, args, layout)


@rule("select_scatter")
def _select_scatter(self: Prover, node: Node, args: list[Any]) -> Node:
    layout = self.layouts[args[0]]
    dim, index = args[2] % len(layout), args[3]
    if self.has_padding(layout[dim]) and (not isinstance(index, int) or index < 0):
        raise UnsafeError("the index counts from the end of a padded dimension")
    rest = layout[:dim] + layout[dim + 1 :]
    self.agree(rest, self.layouts[args[1]])
    return self.emit(node, args, layout)


@rule("cat", "stack")
def _cat(self: Prover, node: Node, args: list[Any]) -> Node:
    parts = [self.layouts[a] for a in args[0]]
    stack = "stack" in node.target.name()  # type: ignore[union-attr]
    value = node.meta["val"]
    dim = args[1] % value.dim()
    made = list(parts[0])
    if stack:
        made.insert(dim, (len(parts),))
    else:
        if any(self.has_padding(p[dim]) for p in parts):
            raise UnsafeError("it joins along a padded dimension")
        made[dim] = (expression_of(value.shape[dim]),)
    for p in parts[1:]:
        for d, (a, b) in enumerate(zip(parts[0], p, strict=True)):
            if (stack or d != dim) and a != b and (self.has_padding(a) or self.has_padding(b)):
                raise UnsafeError(f"dimension {d} is padded differently in its arguments")
    return self.emit(node, args, tuple(made))


@rule("split.Tensor", "split_with_sizes", "unbind.int", "glu", "topk", "sort", "sort.stable")
def _along(self: Prover, node: Node, args: list[Any]) -> Node:
    """What works along one dimension, which is not padded, and leaves the others alone."""
    layout = self.layouts[args[0]]
    dim = _named(node, args, "dim", 0) % max(len(layout), 1)
    if self.has_padding(layout[dim]):
        raise UnsafeError(f"dimension {dim} is padded")
    value = node.meta["val"]
    several = isinstance(value, (list, tuple))

    def one(v: Any) -> Layout:
        if v.dim() < len(layout):
            return layout[:dim] + layout[dim + 1 :]
        return (*layout[:dim], (expression_of(v.shape[dim]),), *layout[dim + 1 :])

    return self.emit(node, args, [one(v) for v in value] if several else one(value))


@rule(
    "zeros", "ones", "full", "empty.memory_format", "new_zeros", "new_ones", "new_full",
    "new_empty", "arange", "arange.start", "arange.start_step",
)  # fmt: skip
def _create(self: Prover, node: Node, args: list[Any]) -> Node:
    name = node.target.name().removeprefix("aten::")  # type: ignore[union-attr]
    schema = node.target._schema  # type: ignore[union-attr]
    for a, value in zip(schema.arguments, args, strict=True):
        number = isinstance(value, Node) and is_number(value.meta.get("val"))
        inside = number and bool(self.symbols_of(value.meta["val"]))
        if inside and a.name in ("fill_value", "s", "start", "step"):
            raise UnsafeError(f"{a.name} is a padded size")
    if name == "arange.start_step" and not isinstance(_named(node, args, "step"), (int, float)):
        raise UnsafeError("step is a padded size")
    return self.emit(node, args, self.plain(node.meta["val"]))
