"""Gradients of one batch: of the pilot's loss, or what its own training step leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neuron_readiness.pilot import Case
from neuron_readiness.workload import Workload, still

Wrap = Callable[[Any], Any]  # the model, as it is to be called


def of(workload: Workload, case: Case, wrap: Wrap = lambda m: m) -> dict[str, torch.Tensor] | None:
    """Gradients by parameter, or None where nothing leaves any. ``wrap``: ``torch.compile`` of the
    model, say; its parameters stay the same."""
    if not isinstance(workload.model, torch.nn.Module):
        return None
    declares_step = workload.pilot.part("train_step") is not None
    if case.train and declares_step and workload.pilot.part("loss") is None:
        # What its own training step leaves behind, from equal weights and without dropout.
        weights = workload.parameters()
        workload, _ = still(Workload(workload.pilot, workload.adapter))
        workload.model.load_state_dict(weights)
        torch.manual_seed(workload.pilot.seed)
        workload.wrap = wrap
        workload.train(case)
        return _kept(workload.model) or None
    workload.model.zero_grad(set_to_none=True)
    loss = workload.loss(case, wrap(workload.model))
    if loss is None or not loss.requires_grad:
        return None
    loss.backward()
    found = _kept(workload.model)
    workload.model.zero_grad(set_to_none=True)
    return found


def _kept(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}
