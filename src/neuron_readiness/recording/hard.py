"""Difficult cases made from ordinary ones, where the pilot names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case

_MOST = 4  # shapes that difficult cases are made of
_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "large": lambda t: t * 1e4,
    "tiny": lambda t: t * 1e-6,
    "tied": lambda t: torch.full_like(t, float(t.double().mean())),
}


def derive(cases: list[Case]) -> list[Case]:
    """The first cases of other shapes (at most ``_MOST``), each with large, tiny and tied values.
    Of integers the range is the workload's to know: where a case has nothing else, all are made one
    that was seen."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        family = trees.shape_text((case.args, case.kwargs))
        if len(kinds) < _MOST and family not in kinds and (made := _derived(case)):
            kinds[family] = made
    return [case for made in kinds.values() for case in made]


def _derived(case: Case) -> list[Case]:
    tensors = trees.tensors((case.args, case.kwargs))
    if any(t.is_floating_point() for t in tensors):
        return [_changed(case, kind, change) for kind, change in _KINDS.items()]
    if not any(_codes(t) for t in tensors):
        return []
    args, kwargs = trees.map_tensors(_equal, (case.args, case.kwargs))
    name = f"{case.name} (equal values)"
    return [dataclasses.replace(case, name=name, args=args, kwargs=kwargs, hard=True)]


def _codes(tensor: torch.Tensor) -> bool:
    """Whether these are numbers of something: integers that are no mask."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    return tensor.numel() > 1 and int(tensor.max()) > 1


def _equal(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, int(tensor.flatten()[0])) if _codes(tensor) else tensor


def _changed(case: Case, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    args, kwargs = trees.map_tensors(apply, (case.args, case.kwargs))
    return dataclasses.replace(
        case, name=f"{case.name} ({kind} values)", args=args, kwargs=kwargs, hard=True
    )
