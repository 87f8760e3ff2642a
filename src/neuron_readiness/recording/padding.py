"""Whether a padded request gives the result of the unpadded one, by the pilot's own `pad`, and what
it takes more."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.context import Context
from neuron_readiness.pilot import Case
from neuron_readiness.recording import tolerance, turns
from neuron_readiness.recording.compare import compare_all
from neuron_readiness.workload import Workload, on_path

_ROUNDS, _LEAST = 21, 5
_LIMIT_S = 30.0


def examine(context: Context, boundaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Pads every request to the smallest of the bucket shapes that holds it, and compares."""
    workload = on_path(context.pilot, context.device)
    pad, unpad = context.pilot.part("pad"), context.pilot.part("unpad")
    frequency: dict[str, float] = {}
    chosen: dict[str, tuple[Case, Any]] = {}  # the first case of a shape, and what it is padded to
    ordered = sorted((b["dims"] for b in boundaries), key=lambda dims: [x for d in dims for x in d])
    facts: dict[str, Any] = {"cases": 0, "failed": 0, "changed": [], "wasted_elements": 0.0}
    elements = padded_elements = 0

    def tol(expected: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(expected, workload.model)

    for case in context.pilot.cases("requests"):
        args, kwargs = workload.prepared(case)
        shapes = [list(t.shape) for t in trees.tensors((args, kwargs))]
        target = next((dims for dims in ordered if _holds(dims, shapes)), None)
        family = str(shapes)
        frequency[family] = frequency.get(family, 0.0) + case.frequency
        chosen.setdefault(family, (case, None if target == shapes else target))
        if target is None or target == shapes:
            continue
        facts["cases"] += 1
        expected = trees.move(_output(workload, args, kwargs), "cpu")
        wide_args, wide_kwargs = pad(args, kwargs, target)
        elements += sum(t.numel() for t in trees.tensors((args, kwargs)))
        padded_elements += sum(t.numel() for t in trees.tensors((wide_args, wide_kwargs)))
        actual = trees.move(_output(workload, wide_args, wide_kwargs), "cpu")
        if unpad is not None:
            actual = unpad(actual, args, kwargs)
        bad = [r for r in compare_all(actual, expected, tol) if not r.within]
        if bad:
            facts["failed"] += 1
            problem = bad[0].problem or f"{bad[0].name} differs by {bad[0].max_abs:.3g}"
            facts["changed"].append({"case": case.name, "problem": problem})
    if padded_elements:
        facts["wasted_elements"] = 1 - elements / padded_elements
        shares = _cost(workload, list(chosen.values()), list(frequency.values()))
        share = turns.best(shares, host_computes=workload.adapter.host_computes())
        facts["cost"] = share.told()
        facts["said"] = turns.said(shares, share)
    return facts


def _cost(
    workload: Workload, chosen: list[tuple[Case, Any]], weights: list[float]
) -> list[turns.Share]:
    """By clock, what padding adds to the average request, with `pad` and `unpad` themselves."""
    pad, unpad = workload.pilot.part("pad"), workload.pilot.part("unpad")

    def plain(case: Case) -> None:
        _output(workload, *workload.prepared(case))
        workload.adapter.synchronize()

    def padded(case: Case, target: Any) -> None:
        args, kwargs = workload.prepared(case)
        output = _output(workload, *pad(args, kwargs, target))
        if unpad is not None:
            unpad(output, args, kwargs)
        workload.adapter.synchronize()

    steps = [partial(plain, case) for case, _ in chosen]
    steps += [partial(padded, case, to) if to else partial(plain, case) for case, to in chosen]
    for step in steps:
        step()  # nothing is compiled in a timed round
    found = turns.in_turns(steps, _ROUNDS, _LEAST, _LIMIT_S)
    total = sum(weights) or 1.0
    shares = []
    for clock in turns.CLOCKS:
        series = [f[clock] for f in found]

        def average(part: list[list[float]]) -> list[float]:
            rounds = zip(*part, strict=True)
            return [sum(w * s for w, s in zip(weights, r, strict=True)) / total for r in rounds]

        before, after = average(series[: len(chosen)]), average(series[len(chosen) :])
        shares.append(turns.added(before, after, clock))
    return shares


def _output(workload: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        args, kwargs = trees.move((args, kwargs), workload.adapter.device)
        return workload.call(args, kwargs)


def _holds(dims: list[list[int]], shapes: list[list[int]]) -> bool:
    return len(dims) == len(shapes) and all(
        len(d) == len(s) and all(x >= y for x, y in zip(d, s, strict=True))
        for d, s in zip(dims, shapes, strict=True)
    )
