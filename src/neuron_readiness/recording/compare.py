"""Two tensors side by side: how far apart, and whether that is within a tolerance."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.recording.tolerance import Tolerance


@dataclasses.dataclass
class Difference:
    """How one tensor differs from its reference. ``worst``: the largest excess, in tolerances;
    above 1 it fails."""

    name: str
    shape: list[int]
    dtype: str
    reference_dtype: str
    max_abs: float
    max_rel: float
    worst: float
    nan_device: int
    nan_reference: int
    within: bool
    problem: str = ""


def compare(actual: torch.Tensor, expected: torch.Tensor, tol: Tolerance, name: str) -> Difference:
    """Compares in float64 on the CPU. NaN equals NaN, infinities equal themselves."""
    a, e = actual.detach().cpu(), expected.detach().cpu()
    record = Difference(name, list(e.shape), _dtype(a), _dtype(e), 0.0, 0.0, 0.0, 0, 0, False)
    if a.shape != e.shape:
        record.problem = f"shape {list(a.shape)}, reference {list(e.shape)}"
        return record
    if a.dtype != e.dtype:
        record.problem = f"dtype {_dtype(a)}, reference {_dtype(e)}"
    exact = not (e.is_floating_point() or e.is_complex())
    wide = torch.complex128 if e.is_complex() or a.is_complex() else torch.float64
    a64, e64 = a.to(wide), e.to(wide)
    record.nan_device, record.nan_reference = int(a64.isnan().sum()), int(e64.isnan().sum())
    same = (a64 == e64) | (a64.isnan() & e64.isnan())
    gap = torch.where(same, 0.0, (a64 - e64).abs())
    gap = torch.where(gap.isnan(), torch.inf, gap)
    if gap.numel():
        size = e64.abs().nan_to_num(0.0, 0.0, 0.0)
        allowed = torch.zeros_like(size) if exact else tol.atol + tol.rtol * size
        record.max_abs = float(gap.max())
        record.max_rel = float((gap / size.clamp_min(1e-300))[gap > 0].max()) if gap.any() else 0.0
        excess = torch.where(gap > 0, gap / allowed.clamp_min(1e-300), torch.zeros_like(gap))
        record.worst = float(excess.max())
    record.within = record.worst <= 1.0 and not record.problem
    return record


def compare_all(actual: Any, expected: Any, tol: Any, name: str = "output") -> list[Difference]:
    """Every tensor, number and text of two outputs, matched by path. ``tol(expected, name)`` gives
    tolerances."""
    found = dict(trees.named_values(actual, name))
    rows = []
    for path, reference in trees.named_values(expected, name):
        if path not in found:
            rows.append(_missing(path, "missing on the device"))
            continue
        value = found.pop(path)
        if isinstance(reference, str) or isinstance(value, str):
            row = _missing(
                path, "" if value == reference else f"{value!r}, reference {reference!r}"
            )
            rows.append(dataclasses.replace(row, within=value == reference))
        else:
            a, e = torch.as_tensor(value), torch.as_tensor(reference)
            rows.append(compare(a, e, tol(e, path), path))
    rows += [_missing(path, "missing on the reference") for path in found]
    return rows


def _missing(path: str, problem: str) -> Difference:
    return Difference(path, [], "", "", 0.0, 0.0, 0.0, 0, 0, False, problem)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
