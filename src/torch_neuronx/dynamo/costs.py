"""What a graph costs: floating-point operations by PyTorch's own formulas."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.dynamo.sizes import Sizes, examples

_log = logging.getLogger(__name__)


def flops(gm: GraphModule, values: list[Any]) -> int:
    """Floating-point operations of one call with these inputs.

    ``torch.utils.flop_counter`` has formulas for matrix products, convolutions and attention, and
    ``_formulas`` for their relatives; the rest counts as nothing, as there.
    """
    formulas = _formulas()
    counted = [n for n in gm.graph.nodes if _packet(n) in formulas]
    if not counted:
        return 0
    inputs = examples(gm)
    sizes = Sizes(inputs, values[: len(inputs)])
    return sum(_of_node(node, formulas[_packet(node)], sizes) for node in counted)


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


def _of_node(node: Node, formula: Callable[..., Any], sizes: Sizes) -> int:
    try:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: _meta(n, sizes))  # type: ignore[misc]
        return int(formula(*args, **kwargs, out_val=_meta(node, sizes)))
    except Exception as error:  # a formula must not cost the call
        _log.info("no FLOPs of %s: %s", node.format_node(), error)
        return 0


def _meta(node: Node, sizes: Sizes) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty(sizes.values(value.shape), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return type(value)(one(v) for v in value)
        return sizes.number(value) if value is not None else None

    if node.meta.get("operand"):
        return 1  # no formula asks for more than a number
    return one(node.meta.get("val"))


def _recurrent(x: Any, hx: Any, cx: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
    """One layer and direction: both products of every step. x (T, N, I), weights (G H, I or H)."""
    return int(2 * x.shape[0] * x.shape[1] * (w_ih.numel() + w_hh.numel()))


def _recurrent_backward(
    grad_output: Any, grad_hy: Any, grad_cy: Any, *forward: Any, **_: Any
) -> int:
    """The gradients of both products, each for its input and its weights."""
    return 2 * _recurrent(*forward)


@functools.cache
def _formulas() -> dict[Any, Callable[..., Any]]:
    """PyTorch's, and the same for operators that it has none for; by overload packet."""
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    attention = flop_registry[aten._scaled_dot_product_flash_attention]
    attention_backward = flop_registry[aten._scaled_dot_product_flash_attention_backward]
    return {
        **flop_registry,
        aten._scaled_dot_product_fused_attention_overrideable: attention,
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_fused_attention_overrideable_backward: attention_backward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
        aten._addmm_activation: flop_registry[aten.addmm],
        aten._int_mm: flop_registry[aten.mm],
        aten.mv: lambda matrix, *_, **__: 2 * matrix.numel(),
        aten.addmv: lambda _, matrix, *__, **___: 2 * matrix.numel(),
        aten.dot: lambda vector, *_, **__: 2 * vector.numel(),
        aten.vdot: lambda vector, *_, **__: 2 * vector.numel(),
        aten.addbmm: lambda _, a, b, **__: 2 * a.numel() * b.shape[-1],
        torch.ops.neuron.rnn_layer: _recurrent,
        torch.ops.neuron.rnn_layer_backward: _recurrent_backward,
    }
