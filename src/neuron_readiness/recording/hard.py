"""Difficult cases made from ordinary ones, where the pilot names none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case

_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "large": lambda t: t * 1e4,
    "tiny": lambda t: t * 1e-6,
    "tied": lambda t: torch.full_like(t, float(t.double().mean())),
}


def derive(cases: list[Case]) -> list[Case]:
    """The first case with floating inputs, with large, tiny and tied values; none for a case of
    integers, whose range is the workload's to know."""
    for case in cases:
        if any(t.is_floating_point() for t in trees.tensors((case.args, case.kwargs))):
            return [_changed(case, kind, change) for kind, change in _KINDS.items()]
    return []


def _changed(case: Case, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        return change(tensor) if tensor.is_floating_point() else tensor

    args, kwargs = trees.map_tensors(apply, (case.args, case.kwargs))
    return dataclasses.replace(
        case, name=f"{case.name} ({kind} values)", args=args, kwargs=kwargs, hard=True
    )
