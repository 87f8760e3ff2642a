"""Layers side by side; in each case the first that diverges, found by bisection."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.evidence import Finding, Severity, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording import layers, tolerance
from neuron_readiness.recording.compare import Difference, compare_all
from neuron_readiness.workload import Workload, still

MOST = 24  # cases whose layers are compared


def choose(cases: list[Case], failed: set[str]) -> tuple[list[Case], list[Case]]:
    """(cases whose layers are compared, the others): all, or where there are more than ``MOST``,
    first those whose outputs leave their tolerance, then the first of each shape and group, then
    the others in their order."""
    if len(cases) <= MOST:
        return cases, []
    seen: set[tuple[bool, str]] = set()
    rank: dict[str, int] = {}
    for case in cases:
        family = (case.hard, trees.shape_text((case.args, case.kwargs)))
        rank[case.name] = 0 if case.name in failed else 1 if family not in seen else 2
        seen.add(family)
    ranked = sorted(cases, key=lambda c: rank[c.name])
    return ranked[:MOST], ranked[MOST:]


def examine(
    result: StageResult,
    device: Workload,
    reference: Workload,
    cases: list[Case],
    limit: int,
    failed: frozenset[str] = frozenset(),
) -> None:
    """Writes the layer ledger (at most ``limit`` layers a case) and the first divergent layer of
    each case. ``failed``: cases whose outputs leave their tolerance."""
    chosen, left = choose(cases, set(failed))
    result.ledgers["layers"] = []
    sides = Side(device), Side(reference)
    rows = [_case(result, *sides, case, limit) for case in chosen]
    diverging = sorted(
        (r for r in rows if r["first_divergent"]), key=lambda r: r["group"] == "hard"
    )
    worst = diverging[0] if diverging else None
    result.facts["layers"] = {
        "count": max((r["count"] for r in rows), default=0),
        "compared": sum(r["compared"] for r in rows),
        "cases": rows,
        "not_compared": [c.name for c in left],
        # Of the first case, ordinary ones before hard ones, that has any.
        "first_divergent": worst and worst["first_divergent"],
        "first_divergent_case": worst and worst["case"],
        "divergent_cases": [r["case"] for r in diverging],
    }
    if left:
        names = ", ".join(c.name for c in left[:5])
        result.open(
            f"layers of {len(left)} further cases: {names}",
            f"compared are {MOST}: cases that fail, then one of each shape, then the first others",
        )
    how = "forward hooks on leaf modules, bisection in each case whose last layer diverges"
    kinds = ", ".join(f"{sum(r['group'] == g for r in rows)} {g}" for g in _GROUPS)
    result.measured(
        f"layers: {result.facts['layers']['compared']} compared in {len(rows)} cases ({kinds}); "
        f"{len(diverging)} cases have one that diverges",
        how,
    )
    for row in diverging:
        severity: Severity = "note" if row["group"] == "hard" else "gap"
        text = f"first divergent layer: {row['first_divergent']} ({row['type']}), {row['origin']}"
        result.findings.append(Finding(text, severity, f"case {row['case']}"))


_GROUPS = ("ordinary", "hard", "train")


def _group(case: Case) -> str:
    return "hard" if case.hard else "train" if case.train else "ordinary"


def _case(
    result: StageResult, device: Side, reference: Side, case: Case, limit: int
) -> dict[str, Any]:
    order = _order(reference, case)
    compared = order if len(order) <= limit else order[:: -(-len(order) // limit)]
    rows = _differences(device, reference, case, set(compared))
    group = _group(case)
    result.ledgers["layers"] += [
        {"order": i, "case": case.name, "group": group, "layer": n, **_worst(rows.get(n, []))}
        for i, n in enumerate(order)
        if n in rows
    ]
    first = bisect(device, reference, case, order) or _passing(reference, case, order, rows)
    return {
        "case": case.name,
        "group": group,
        "count": len(order),
        "compared": len(rows),
        "first_divergent": first and first["layer"],
        "type": first and first["type"],
        "origin": first and first["origin"],
        "probes": first["probes"] if first else 1,
    }


def bisect(device: Side, reference: Side, case: Case, order: list[str]) -> dict[str, Any] | None:
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
    kind = type(reference.layer(case, name)).__name__
    own = _diverges_alone(device, reference, case, name)
    origin = "it introduces the difference" if own else "rounding that grew over earlier layers"
    return {"layer": name, "type": kind, "origin": origin, "probes": probes}


def _passing(
    reference: Side, case: Case, order: list[str], rows: dict[str, list[Difference]]
) -> dict[str, Any] | None:
    """The first compared layer that leaves its tolerance although the last one is within it."""
    for name in order:
        if any(not r.within for r in rows.get(name, [])):
            kind = type(reference.layer(case, name)).__name__
            origin = "later layers are within their tolerance again"
            return {"layer": name, "type": kind, "origin": origin, "probes": 1}
    return None


class Side:
    """The model of one side, and how a case runs through it: a request by its forward, a batch of
    ``train_step`` by the first step from the same weights, without dropout, in a copy."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._copy: Workload | None = None

    def steps(self, case: Case) -> bool:
        return case.train and self.workload.pilot.trains

    def model(self, case: Case) -> torch.nn.Module:
        found: torch.nn.Module = self._stepping().model if self.steps(case) else self.workload.model
        return found

    def layer(self, case: Case, name: str) -> torch.nn.Module:
        """The module that the order calls ``name``, at its first run or a later one."""
        return layers.leaves(self.model(case))[name.split("#")[0]]

    def watch(self, case: Case, see: layers.See, only: set[str] | None = None) -> None:
        if not self.steps(case):
            with layers.watching(self.workload.model, see, only):
                self.workload.output(case)
            return
        copy = self._stepping()
        copy.model.load_state_dict(self.workload.parameters())
        copy.model.zero_grad(set_to_none=True)
        copy.optimizer = None  # none of its state from the step before
        torch.manual_seed(copy.pilot.seed)
        with layers.watching(copy.model, see, only):
            copy.train(case)

    def _stepping(self) -> Workload:
        if self._copy is None:
            self._copy, _ = still(Workload(self.workload.pilot, self.workload.adapter))
        return self._copy


def _order(side: Side, case: Case) -> list[str]:
    names: list[str] = []

    def see(name: str, _args: Any, _kwargs: Any, output: Any) -> None:
        if trees.tensors(output):
            names.append(name)

    side.watch(case, see)
    return names


def _captured(side: Side, case: Case, only: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def see(name: str, args: Any, kwargs: Any, output: Any) -> None:
        found[name] = layers.on_host((args, kwargs, output))

    side.watch(case, see, only)
    return found


def _differences(
    device: Side, reference: Side, case: Case, only: set[str]
) -> dict[str, list[Difference]]:
    actual, expected = _captured(device, case, only), _captured(reference, case, only)

    def tol(tensor: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(tensor, reference.workload.model)

    return {
        name: compare_all(actual[name][2], expected[name][2], tol, name)
        for name in expected
        if name in actual
    }


def _within(device: Side, reference: Side, case: Case, name: str) -> bool:
    rows = _differences(device, reference, case, {name}).get(name)
    return rows is not None and all(r.within for r in rows)


def _diverges_alone(device: Side, reference: Side, case: Case, name: str) -> bool:
    args, kwargs, expected = _captured(reference, case, {name})[name]
    module = device.layer(case, name)
    with torch.no_grad():
        moved, named = trees.move((args, kwargs), device.workload.adapter.device)
        actual = module(*moved, **named)

    def tol(tensor: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(tensor, module)

    return not all(r.within for r in compare_all(actual, expected, tol, name))


def _worst(rows: list[Difference]) -> dict[str, Any]:
    row = max(rows, key=lambda r: r.worst, default=None)
    return dataclasses.asdict(row) if row else {}
