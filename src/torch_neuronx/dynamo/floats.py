"""Keeps changing Python floats symbolic until AOTAutograd has finished.

PyTorch passes such a float as a 0-d CPU tensor. Where an operator takes a tensor in its place, it
takes that one; everywhere else (``alpha=``, ``clamp``, ``full``) PyTorch captures the function
anew for every value, until Dynamo gives up. Here those operators read tensors too, by a stand-in
that ``restore`` replaces (decision 66).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)
from torch.fx.passes._tensorify_python_scalars import SUPPORTED_OPS
from torch.utils import _pytree as pytree

from torch_neuronx.dynamo.sizes import known_number

_MARK = "neuron::float "


def with_floats(op: Any, floats: Any, args: Any, kwargs: Any) -> Any:
    """Stands for ``op``: ``floats`` are 0-d float64 CPU tensors, and where they belong among the
    arguments a mark has their number."""
    raise NotImplementedError(f"{op} with symbolic floats stands in graphs only")


def readers(names: Iterable[str]) -> list[Any]:
    """Of the overloads with these names, those that take numbers and draw none."""
    found = []
    for name in names:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        numbers = any(_takes_float(str(a.type)) for a in op._schema.arguments)
        if numbers and torch.Tag.nondeterministic_seeded not in op.tags:
            found.append(op)
    return found


def _takes_float(kind: str) -> bool:
    return "number" in kind or "float" in kind


def keeps(op: Any) -> Callable[..., Any]:
    """The decomposition of ``op``: the stand-in where it reads symbolic floats that PyTorch would
    specialise, else none."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if any(_is_changing(v) for v in pytree.tree_leaves((args, kwargs))) and not (
            op in SUPPORTED_OPS and not any(_is_changing(v) for v in kwargs.values())
        ):
            return _stand_in(op, args, kwargs)
        return NotImplemented

    return decompose


def _is_changing(value: Any) -> bool:
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    if not isinstance(value, torch.SymFloat):
        return False
    symbols = value.node.expr.free_symbols
    return bool(symbols) and all(symbol_is_type(s, SymT.FLOAT) for s in symbols)


def _stand_in(op: Any, args: Any, kwargs: Any) -> Any:
    mode = get_proxy_mode()
    if mode is None:
        return NotImplemented
    with disable_proxy_modes_tracing():
        result = op(*args, **kwargs)
    found: list[torch.SymFloat] = []
    tensors: list[torch.Tensor] = []

    def mark(value: Any) -> Any:
        if not _is_changing(value):
            return value
        # PyTorch knows this product: it multiplies with the tensor that the float came as.
        one = torch.ones((), dtype=torch.float64, device="cpu")
        tensors.append(torch.ops.aten.mul.Tensor(one, value))
        found.append(value)
        return f"{_MARK}{len(found) - 1}"

    marked = pytree.tree_map(mark, (args, kwargs))
    proxies = pytree.tree_map(mode.tracer.unwrap_proxy, (op, tuple(tensors), *marked))
    proxy = mode.tracer.create_proxy("call_function", with_floats, proxies, {})
    proxy.node.meta["floats"] = found
    return track_tensor_tree(result, proxy, constant=None, tracer=mode.tracer)


def restore(gm: GraphModule) -> None:
    """Write stand-ins as the operators that they stand for, in place."""
    found = [n for n in gm.graph.nodes if n.target is with_floats]
    for node in found:
        op, tensors, args, kwargs = node.args
        with gm.graph.inserting_before(node):
            items = [_item(t, value) for t, value in zip(tensors, node.meta["floats"], strict=True)]

        def read(value: Any, items: list[Any] = items) -> Any:
            marked = isinstance(value, str) and value.startswith(_MARK)
            return items[int(value.removeprefix(_MARK))] if marked else value

        node.target = op
        node.args, node.kwargs = torch.fx.node.map_aggregate((args, kwargs), read)  # type: ignore
    if found:
        gm.recompile()


def _item(tensor: Node, value: torch.SymFloat) -> Any:
    known = known_number(value)
    if known is not None:
        return known  # PyTorch asked for its value after all, and guards on it
    made = tensor.graph.call_function(torch.ops.aten._local_scalar_dense.default, (tensor,))
    made.meta["val"] = value
    return made
