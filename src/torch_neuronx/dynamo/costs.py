"""What a graph costs: floating-point operations by PyTorch's own formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_neuronx.dynamo.sizes import Sizes


def flops(gm: GraphModule, values: list[Any]) -> int:
    """Floating-point operations of one call with these inputs.

    ``torch.utils.flop_counter`` has formulas for matrix products, convolutions and attention; the
    rest counts as nothing, as there.
    """
    from torch.utils.flop_counter import flop_registry

    counted = [n for n in gm.graph.nodes if getattr(n.target, "overloadpacket", n.target)
               in flop_registry]  # fmt: skip
    if not counted:
        return 0
    inputs = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    sizes = Sizes(inputs, values[: len(inputs)])
    total = 0
    for node in counted:
        formula = flop_registry[getattr(node.target, "overloadpacket", node.target)]
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: _meta(n, sizes))  # type: ignore[misc]
        total += int(formula(*args, **kwargs, out_val=_meta(node, sizes)))
    return total


def _meta(node: Node, sizes: Sizes) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty(sizes.values(value.shape), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return type(value)(one(v) for v in value)
        return sizes.number(value) if value is not None else None

    return one(node.meta.get("val"))
