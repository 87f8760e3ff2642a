"""How far the reference itself moves where nothing but rounding or the order of equals differs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuron_readiness import trees
from neuron_readiness.sweep import running
from neuron_readiness.sweep.sources import Built


class _OtherTies(TorchDispatchMode):
    """Orders from the other end, so that equal values come in another order, just as valid."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.ops.aten.topk.default, torch.ops.aten.sort.default):
            return func(*args, **kwargs)
        x = args[0]
        position = 2 if func is torch.ops.aten.topk.default else 1
        dim = kwargs.get("dim", args[position] if len(args) > position else -1)
        if x.dim() == 0:
            return func(*args, **kwargs)
        values, indices = func(x.flip(dim), *args[1:], **kwargs)
        return values, x.shape[dim] - 1 - indices


def outputs_move(built: Built, expected: Any) -> float:
    """How far the reference's outputs move, in tolerances, when its weights and inputs are rounded
    once more and equal values are ordered otherwise: where that is more than 1, a comparison of
    devices says nothing (a detector with random weights picks among equal scores)."""
    model, kwargs = _rounded(built)
    with _OtherTies():
        moved = running.forward(model, kwargs)
    return running.worst(running.compare_outputs(moved, expected, built.model))


def gradients_move(built: Built, expected: dict[str, torch.Tensor]) -> float:
    """The same for its gradients."""
    model, kwargs = _rounded(built)
    with _OtherTies():
        moved = running.gradients(model, kwargs)
    return running.worst(running.compare_gradients(moved or {}, expected, built.model))


def _rounded(built: Built) -> tuple[Any, dict[str, Any]]:
    """A copy whose weights and inputs differ by one unit in the last place."""
    make = torch.Generator().manual_seed(2)

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=make) * 2 - 1
        return tensor * (1 + torch.finfo(tensor.dtype).eps * signs)

    model = copy.deepcopy(built.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rounded(parameter))
    return model, trees.map_tensors(rounded, built.kwargs)
