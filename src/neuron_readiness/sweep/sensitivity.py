"""How far the reference itself moves where nothing but rounding, the order of equals, random
numbers or strides differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
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


class _Contiguous(TorchDispatchMode):
    """Gives the kernels of gradients contiguous tensors with the same values. PyTorch 2.13's batch
    norm gives other gradients on the CPU for a batch of one whose ``grad_output`` has the strides
    of channels last and whose input has not."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "backward" in func.name():
            args = tuple(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args)
        return func(*args, **(kwargs or {}))


def outputs_move(built: Built, expected: Any) -> float:
    """How far the reference's outputs move, in tolerances, when its weights and inputs are rounded
    once more and equal values are ordered otherwise, when random numbers are others (a device draws
    its own), or when subnormal numbers count as zero: where that is more than 1, a comparison of
    devices says nothing (a detector with random weights picks among equal scores)."""
    moved = _moved(built, running.forward)
    return max(running.worst(running.compare_outputs(m, expected, built.model)) for m in moved)


def gradients_move(built: Built, expected: dict[str, torch.Tensor]) -> float:
    """The same for its gradients, which may besides depend on how tensors lie in memory."""
    moved = _moved(built, running.gradients)
    with _Contiguous():
        moved.append(running.gradients(built.model, built.kwargs))
    return max(
        running.worst(running.compare_gradients(m or {}, expected, built.model)) for m in moved
    )


def _moved(built: Built, run: Callable[..., Any]) -> list[Any]:
    model, kwargs = _rounded(built)
    with _OtherTies():
        rounded = run(model, kwargs)
    drawn = run(built.model, built.kwargs, 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the processor's flag is of one thread
    # Backward passes of the CPU run in the thread that asks for them.
    flushes = torch.set_flush_denormal(True)
    try:
        return [rounded, drawn, *([run(built.model, built.kwargs)] if flushes else [])]
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


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
