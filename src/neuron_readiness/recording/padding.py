"""Whether a padded request gives the result of the unpadded one, by the pilot's own `pad`."""

from __future__ import annotations

from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.context import Context
from neuron_readiness.recording import tolerance
from neuron_readiness.recording.compare import compare_all


def examine(context: Context, boundaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Pads every request to the smallest of the bucket shapes that holds it, and compares."""
    workload = context.pair[0]
    pad, unpad = context.pilot.part("pad"), context.pilot.part("unpad")
    ordered = sorted((b["dims"] for b in boundaries), key=lambda dims: [x for d in dims for x in d])
    facts: dict[str, Any] = {"cases": 0, "failed": 0, "changed": [], "wasted_elements": 0.0}
    elements = padded_elements = 0

    def tol(expected: torch.Tensor, _: str) -> tolerance.Tolerance:
        return tolerance.derived(expected, workload.model)

    for case in context.pilot.cases("requests"):
        args, kwargs = workload.prepared(case)
        shapes = [list(t.shape) for t in trees.tensors((args, kwargs))]
        target = next((dims for dims in ordered if _holds(dims, shapes)), None)
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
    return facts


def _output(workload: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        args, kwargs = trees.move((args, kwargs), workload.adapter.device)
        return workload.call(args, kwargs)


def _holds(dims: list[list[int]], shapes: list[list[int]]) -> bool:
    return len(dims) == len(shapes) and all(
        len(d) == len(s) and all(x >= y for x, y in zip(d, s, strict=True))
        for d, s in zip(dims, shapes, strict=True)
    )
