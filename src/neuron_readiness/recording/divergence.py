"""Layers side by side, and the first that diverges, found by bisection."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.evidence import Finding, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording import layers, tolerance
from neuron_readiness.recording.compare import Difference, compare_all
from neuron_readiness.workload import Workload


def examine(
    result: StageResult, device: Workload, reference: Workload, case: Case, limit: int
) -> None:
    """Writes the layer ledger (at most ``limit`` layers) and the first divergent layer."""
    order = _order(reference, case)
    compared = order if len(order) <= limit else order[:: -(-len(order) // limit)]
    rows = _differences(device, reference, case, set(compared))
    result.ledgers["layers"] = [
        {"order": i, "case": case.name, "layer": n, **_worst(rows.get(n, []))}
        for i, n in enumerate(order)
        if n in rows
    ]
    first = bisect(device, reference, case, order)
    result.facts["layers"] = {
        "count": len(order),
        "compared": len(rows),
        "first_divergent": first["layer"] if first else None,
        "first_divergent_detail": first,
        "probes": first["probes"] if first else 1,
    }
    if first is None:
        text = f"no layer diverges: {len(rows)} of {len(order)} compared, the last one within"
        result.measured(text, f"forward hooks on leaf modules, case {case.name}")
        return
    text = f"first divergent layer: {first['layer']} ({first['type']}), {first['origin']}"
    result.measured(text, f"bisection over {len(order)} layers, {first['probes']} probes")
    result.findings.append(Finding(text, "gap", f"case {case.name}"))


def bisect(
    device: Workload, reference: Workload, case: Case, order: list[str]
) -> dict[str, Any] | None:
    """The first layer whose output leaves its tolerance while its predecessor's is within.

    Each probe keeps one layer's tensors. A layer that diverges when it is given the reference's
    own inputs introduces the difference; otherwise it inherits rounding that grew over layers.
    """
    if not order or _within(device, reference, case, order[-1]):
        return None
    low, high, probes = -1, len(order) - 1, 1  # low is within, high diverges
    while high - low > 1:
        middle = (low + high) // 2
        probes += 1
        if _within(device, reference, case, order[middle]):
            low = middle
        else:
            high = middle
    name = order[high]
    module = layers.leaves(reference.model)[name.split("#")[0]]
    own = _diverges_alone(device, reference, case, name)
    origin = "it introduces the difference" if own else "rounding that grew over earlier layers"
    return {"layer": name, "type": type(module).__name__, "origin": origin, "probes": probes}


def _order(workload: Workload, case: Case) -> list[str]:
    names: list[str] = []

    def see(name: str, _args: Any, _kwargs: Any, output: Any) -> None:
        if trees.tensors(output):
            names.append(name)

    with layers.watching(workload.model, see):
        workload.output(case)
    return names


def _captured(workload: Workload, case: Case, only: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def see(name: str, args: Any, kwargs: Any, output: Any) -> None:
        found[name] = layers.on_host((args, kwargs, output))

    with layers.watching(workload.model, see, only):
        workload.output(case)
    return found


def _differences(
    device: Workload, reference: Workload, case: Case, only: set[str]
) -> dict[str, list[Difference]]:
    actual, expected = _captured(device, case, only), _captured(reference, case, only)

    def tol(tensor: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(tensor, reference.model)

    return {
        name: compare_all(actual[name][2], expected[name][2], tol, name)
        for name in expected
        if name in actual
    }


def _within(device: Workload, reference: Workload, case: Case, name: str) -> bool:
    rows = _differences(device, reference, case, {name}).get(name)
    return rows is not None and all(r.within for r in rows)


def _diverges_alone(device: Workload, reference: Workload, case: Case, name: str) -> bool:
    args, kwargs, expected = _captured(reference, case, {name})[name]
    module = layers.leaves(device.model)[name.split("#")[0]]
    with torch.no_grad():
        moved, named = trees.move((args, kwargs), device.adapter.device)
        actual = module(*moved, **named)

    def tol(tensor: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(tensor, module)

    return not all(r.within for r in compare_all(actual, expected, tol, name))


def _worst(rows: list[Difference]) -> dict[str, Any]:
    row = max(rows, key=lambda r: r.worst, default=None)
    return dataclasses.asdict(row) if row else {}
