"""Rewrites what is arithmetic, but no ATen operator, as ATen operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torch_neuronx.dynamo.obstacles import attribute, is_subgraph


def expand(gm: GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> None:
    """Replace ``flex_attention``, its backward, what ``inline`` replaces, and PyTorch's primitive
    cast, in place."""
    for node in gm.graph.nodes:
        # Written by PyTorch where it makes tensors of changing Python floats.
        if node.target is torch.ops.prims.convert_element_type.default:
            value, dtype = node.args
            node.target, node.args = torch.ops.aten._to_copy.default, (value,)
            node.kwargs = {"dtype": dtype}
    _replace_all(gm, {**_DENSE, **_CALLS}, decompositions)


def inline(gm: GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> None:
    """Replace operators that only call their function, in place.

    ``invoke_quant`` marks a region for Inductor's quantisation. In a joint graph it could be
    neither saved nor computed again.
    """
    _replace_all(gm, _CALLS, decompositions)


def _replace_all(
    gm: GraphModule,
    functions: dict[str, Callable[..., Any]],
    decompositions: dict[Any, Callable[..., Any]],
) -> None:
    found = [
        n
        for n in gm.graph.nodes
        if isinstance(n.target, torch._ops.HigherOrderOperator) and n.target.name() in functions
    ]
    for node in found:
        _replace(gm, node, functions[node.target.name()], decompositions)
    if found:
        gm.graph.eliminate_dead_code()
        gm.recompile()


def _replace(
    gm: GraphModule,
    node: Node,
    function: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
) -> None:
    inputs: list[Node] = []
    torch.fx.map_arg(node.args, inputs.append)  # not keyword arguments: they only tune kernels
    tensors = [n for n in dict.fromkeys(inputs) if not is_subgraph(n)]

    def run(*values: Any) -> Any:
        known: dict[Node, Any] = dict(zip(tensors, values, strict=True))
        args = torch.fx.map_arg(node.args, lambda n: attribute(n) if is_subgraph(n) else known[n])
        return function(*args)

    values = [n.meta["val"] for n in tensors]
    mode = next(v.fake_mode for v in values if isinstance(v, torch._subclasses.FakeTensor))
    with mode:
        table = {**decompositions, torch.ops.flex_lib.zeros_and_scatter.default: _scattered}
        traced = make_fx(run, decomposition_table=table)(*values)
    made: dict[Node, Any] = {}
    placeholders = iter(tensors)
    with gm.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                made[inner] = next(placeholders)
            elif inner.op == "output":
                _hand_over(node, torch.fx.map_arg(inner.args[0], made.__getitem__))
            else:
                made[inner] = gm.graph.node_copy(inner, made.__getitem__)
                made[inner].meta["stack_trace"] = node.stack_trace


def _hand_over(node: Node, results: Any) -> None:
    """Give the users of a node's results, which are ``getitem`` nodes, the results themselves."""
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise NotImplementedError(f"{user.name} uses all results of {node.name} at once")
        value = results[user.args[1]]
        if isinstance(value, Node):
            value.meta["val"] = user.meta["val"]  # its strides are what the caller was told
            user.replace_all_uses_with(value)
        elif value is not None:
            _hand_over(user, value)
    if not node.users or all(not u.users for u in node.users):
        for user in list(node.users):
            user.graph.erase_node(user)
        node.graph.erase_node(node)


def _scattered(shape: list[int], indices: list[Tensor], values: Tensor) -> Tensor:
    """The gradient of indexing what a function on scores captured."""
    return torch.ops.aten.index_put(values.new_zeros(shape), indices, values, True)


def _indices(scores: Tensor) -> list[Tensor]:
    return [torch.arange(n, device=scores.device) for n in scores.shape]


def _spread(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values for every query head and batch."""
    groups = query.size(1) // key.size(1)

    def one(x: Tensor) -> Tensor:
        b, h, s, e = query.size(0), *x.shape[1:]
        return x.unsqueeze(2).expand(b, h, groups, s, e).reshape(b, h * groups, s, e)

    return one(key), one(value)


def _scores(
    query: Tensor, key: Tensor, score_mod: Any, mask_mod: Any, scale: float, score_buffers: Any,
    mask_buffers: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Scores, the mask, and the scores after both functions."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
    indices = _indices(scores)
    modify = _vmap_for_bhqkv(score_mod, prefix=(0,), suffix=(None,) * len(score_buffers))
    allow = _vmap_for_bhqkv(mask_mod, prefix=(), suffix=(None,) * len(mask_buffers))
    with TransformGetItemToIndex():
        allowed = allow(*indices, *mask_buffers)
        modified = modify(scores, *indices, *score_buffers).to(wide)
    return scores, allowed, torch.where(allowed, modified, -math.inf)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: float,
    options: Any, score_buffers: Any = (), mask_buffers: Any = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Results, and log-sum-exp and maximum of the scores to base 2; masked rows give zeros."""
    key, value = _spread(query, key, value)
    _, _, scores = _scores(
        query, key, score_mod, block_mask[-1], scale, score_buffers, mask_buffers
    )
    top = scores.amax(-1)
    empty = top == -math.inf
    exponentials = torch.exp(scores - torch.where(empty, 0.0, top).unsqueeze(-1))
    total = exponentials.sum(-1)
    weights = exponentials / torch.where(empty, 1.0, total).unsqueeze(-1)
    lse = torch.where(empty, -math.inf, top + torch.log(total))
    return weights.to(query.dtype) @ value, lse / math.log(2), top / math.log(2)


def _backward(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, grad_out: Tensor | None,
    grad_lse: Tensor | None, score_mod: Any, joint: Any, block_mask: Any, scale: float,
    options: Any, score_buffers: Any = (), mask_buffers: Any = (),
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]:  # fmt: skip
    """Gradients of query, key, value and of what the function on scores captured."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    b, hkv, s, e = *key.shape[:3], value.size(-1)
    keys, values = _spread(query, key, value)
    scores, allowed, modified = _scores(
        query, keys, score_mod, block_mask[-1], scale, score_buffers, mask_buffers
    )
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    natural = (lse * math.log(2)).unsqueeze(-1)
    weights = torch.where(natural == -math.inf, 0.0, torch.exp(modified - natural))
    grad_value = weights.to(query.dtype).transpose(-2, -1) @ grad_out
    wide = weights.dtype
    grad_weights = grad_out.to(wide) @ values.to(wide).transpose(-2, -1)
    inner = (out.to(wide) * grad_out.to(wide)).sum(-1, keepdim=True)
    grad_modified = grad_weights - inner
    if grad_lse is not None:
        grad_modified = grad_modified + (grad_lse / math.log(2)).unsqueeze(-1)
    grad_modified = weights * grad_modified
    several = (None,) * len(score_buffers)
    pull_back = _vmap_for_bhqkv(
        joint, prefix=(0,), suffix=(0, *several), out_dims=[0, None, None, None, None, *several]
    )
    with TransformGetItemToIndex():
        grad_scores, _, _, _, _, *captured = pull_back(
            scores, *_indices(scores), grad_modified, *score_buffers
        )
    grad_scores = torch.where(allowed, grad_scores * scale, 0.0).to(query.dtype)
    grad_key = grad_scores.transpose(-2, -1) @ query

    def gather(x: Tensor, width: int) -> Tensor:
        """Sum over the query heads, and batches, that a key's head serves."""
        x = x.reshape(query.size(0), hkv, -1, s, width).sum(2)
        return x if b == query.size(0) else x.sum(0, keepdim=True)

    return (
        grad_scores @ keys,
        gather(grad_key, key.size(-1)),
        gather(grad_value, e),
        tuple(captured),
    )


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


_DENSE: dict[str, Callable[..., Any]] = {
    "flex_attention": _forward,
    "flex_attention_backward": _backward,
}
_CALLS: dict[str, Callable[..., Any]] = {"invoke_quant": _call, "invoke_quant_packed": _call}
