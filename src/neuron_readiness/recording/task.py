"""Differences in the task's terms: decisions that flip, order of the best, the metric."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case, Pilot, PilotError
from neuron_readiness.recording import tolerance

_TOP_K = 5
_METRIC = tolerance.Tolerance(1e-3, 1e-6, "default", "a thousandth of the reference's metric")
Outputs = dict[str, tuple[Any, Any]]


def examine(pilot: Pilot, cases: list[Case], outputs: Outputs) -> dict[str, Any]:
    """JSON-ready facts. ``outputs``: name to (device's, reference's), on the host."""
    facts: dict[str, Any] = {
        "decisions": None,
        "flips": 0,
        "flipped": [],
        "order_changes": 0,
        "smallest_margin": math.nan,
        "top_k": 0,
        "how": "",
        "metric": (metric := _metric(pilot, cases, outputs)),
        "metric_failed": None if metric is None else sum(not m["within"] for m in metric.values()),
    }
    margins: list[float] = []
    for case in cases:
        actual, expected = outputs[case.name]
        pair = _scores(pilot, actual), _scores(pilot, expected)
        if pilot.part("decide") is not None:
            facts["how"] = "the pilot's `decide`"
            taken = _decided(pilot, actual), _decided(pilot, expected)
        elif pair[0] is not None and pair[1] is not None:
            facts["how"], taken = _taken(pilot, pair[0], pair[1])
        else:
            continue
        margin = None if pair[1] is None else _margins(pilot, pair[1])
        margins += [] if margin is None else margin.flatten().tolist()
        _count(facts, case, taken, margin)
        if pair[0] is not None and pair[1] is not None and pilot.part("threshold") is None:
            facts["top_k"] = min(_TOP_K, pair[1].shape[-1])
            facts["order_changes"] += _reordered(pair[0], pair[1], facts["top_k"])
    facts["smallest_margin"] = min(margins, default=math.nan)
    return facts


def _decided(pilot: Pilot, output: Any) -> torch.Tensor:
    taken = pilot.part("decide")(output)
    if not isinstance(taken, torch.Tensor):
        raise PilotError(f"decide returned {type(taken).__name__}; expected a tensor of decisions")
    return taken.cpu()


def _scores(pilot: Pilot, output: Any) -> torch.Tensor | None:
    """(items, classes) float64 that decisions are taken from. The pilot's, else ``logits``."""
    function = pilot.part("scores")
    if function is not None:
        found = function(output)
    else:
        found = getattr(output, "logits", None)
        if found is None and isinstance(output, dict):
            found = output.get("logits")
        if found is None and pilot.part("threshold") is None:
            return None
        if found is None:
            found = trees.tensors(output)[0]
    return found.detach().cpu().double() if isinstance(found, torch.Tensor) else None


def _taken(
    pilot: Pilot, actual: torch.Tensor, expected: torch.Tensor
) -> tuple[str, tuple[torch.Tensor, torch.Tensor]]:
    threshold = pilot.part("threshold")
    if threshold is not None:
        return f"scores > {threshold}", (actual > threshold, expected > threshold)
    return "the largest score", (actual.argmax(-1), expected.argmax(-1))


def _margins(pilot: Pilot, scores: torch.Tensor) -> torch.Tensor | None:
    """How far each reference decision is from flipping."""
    threshold = pilot.part("threshold")
    if threshold is not None:
        return (scores - threshold).abs()
    if scores.shape[-1] < 2:
        return None
    best = scores.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def _count(
    facts: dict[str, Any],
    case: Case,
    taken: tuple[torch.Tensor, torch.Tensor],
    margin: torch.Tensor | None,
) -> None:
    actual, expected = taken[0].flatten(), taken[1].flatten()
    facts["decisions"] = (facts["decisions"] or 0) + expected.numel()
    margins = None if margin is None else margin.flatten()
    for index in (actual != expected).nonzero().flatten().tolist():
        facts["flips"] += 1
        facts["flipped"].append(
            {
                "case": case.name,
                "item": index,
                "reference": expected[index].item(),
                "device": actual[index].item(),
                "margin": math.nan if margins is None else float(margins[index]),
            }
        )


def _reordered(actual: torch.Tensor, expected: torch.Tensor, k: int) -> int:
    """Items whose k best come in another order; ties of the reference do not count."""
    order = actual.topk(k, dim=-1).indices
    ranked = expected.gather(-1, order)
    best = expected.topk(k, dim=-1).values
    return int((ranked != best).any(-1).sum())


def _metric(pilot: Pilot, cases: list[Case], outputs: Outputs) -> dict[str, Any] | None:
    function = pilot.part("task_metric")
    if function is None or not cases:
        return None
    values = []
    for side in (0, 1):
        value = function([outputs[c.name][side] for c in cases], cases)
        try:
            named = value if isinstance(value, dict) else {"metric": value}
            values.append({str(name): float(v) for name, v in named.items()})
        except (TypeError, ValueError) as error:
            raise PilotError(
                f"task_metric returned {value!r:.200}; expected a number or {{name: number}}"
            ) from error
    device, reference = values
    allowed = tolerance.given(pilot.setting("tolerances", {}), "metric") or _METRIC
    return {
        name: {
            "device": float(device[name]),
            "reference": float(reference[name]),
            "difference": (gap := abs(float(device[name]) - float(reference[name]))),
            "within": gap <= allowed.atol + allowed.rtol * abs(float(reference[name])),
            "tolerance": dataclasses.asdict(allowed),
        }
        for name in reference
    }
