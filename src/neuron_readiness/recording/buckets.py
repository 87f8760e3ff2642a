"""What padding requests to few shapes would change, from times measured at observed shapes."""

from __future__ import annotations

import itertools
from typing import Any

_LEAST_TRAFFIC = 1000  # requests that compilations are spread over, where the pilot counts fewer


def propose(rows: list[dict[str, Any]], most: int = 8) -> dict[str, Any]:
    """For 1, 2, ... buckets whose boundaries are observed shapes: compilations saved against
    execution added. ``rows``: the shape ledger, with ``dims``, ``cost_s``, ``frequency``,
    ``compiles`` and ``compile_seconds``.

    ``suggested``: the option whose compilations and requests together take the least time over
    ``requests`` requests, and less than separate compilation does; None where none is better.

    A request in a bucket costs what the bucket's boundary shape was measured to cost. Only
    families that can be ordered (each dimension of one <= that of the next) can share a bucket.
    """
    requests = max(sum(r["frequency"] for r in rows), _LEAST_TRAFFIC)
    nothing: dict[str, Any] = {"options": [], "suggested": None, "why_not": ""}
    nothing["requests"] = requests
    usable = [r for r in rows if r["cost_s"] is not None]
    if len(usable) < 2:
        return nothing
    ordered = sorted(usable, key=lambda r: [x for dims in r["dims"] for x in dims])
    for smaller, larger in itertools.pairwise(ordered):
        if not _fits(smaller["dims"], larger["dims"]):
            why = (
                f"{smaller['family']} does not fit into {larger['family']}: more than one "
                "dimension varies on its own"
            )
            return {**nothing, "why_not": why}
    options = [_option(ordered, count) for count in range(1, min(most, len(ordered) - 1) + 1)]
    return {**nothing, "options": options, "suggested": _suggested(options, requests)}


def _fits(smaller: list[list[int]], larger: list[list[int]]) -> bool:
    return len(smaller) == len(larger) and all(
        len(a) == len(b) and all(x <= y for x, y in zip(a, b, strict=True))
        for a, b in zip(smaller, larger, strict=True)
    )


def _option(rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """The split into ``count`` consecutive buckets with the least execution, by dynamic
    programming over boundaries."""
    n = len(rows)
    weight = [0.0]
    for r in rows:
        weight.append(weight[-1] + r["frequency"])
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [])}]
    for _ in range(count):
        level: dict[int, tuple[float, list[int]]] = {}
        for end in range(1, n + 1):
            choices = [
                (cost + (weight[end] - weight[start]) * rows[end - 1]["cost_s"], [*cuts, end - 1])
                for start, (cost, cuts) in best[-1].items()
                if start < end
            ]
            if choices:
                level[end] = min(choices)
        best.append(level)
    cost, cuts = best[-1][n]
    exact = sum(r["frequency"] * r["cost_s"] for r in rows)
    kept = [rows[i] for i in cuts]
    seconds = sum(r["compile_seconds"] or 0.0 for r in rows)
    saved = seconds - sum(r["compile_seconds"] or 0.0 for r in kept)
    added = (cost - exact) / weight[-1] if weight[-1] else 0.0
    return {
        "buckets": count,
        "boundaries": [r["family"] for r in kept],
        "compiles_saved": sum(r["compiles"] or 0 for r in rows)
        - sum(r["compiles"] or 0 for r in kept),
        "compile_seconds_saved": saved,
        "extra_cost": cost / exact - 1.0 if exact else 0.0,
        "extra_seconds_each": added,
        # Requests after which separate compilation is cheaper; None: it never is.
        "break_even": saved / added if added > 0 else None,
    }


def _suggested(options: list[dict[str, Any]], requests: float) -> dict[str, Any] | None:
    """The option that saves most in compilations beyond what it adds to the requests."""

    def gain(option: dict[str, Any]) -> float:
        return float(option["compile_seconds_saved"] - requests * option["extra_seconds_each"])

    best = max(options, key=gain)
    return best if gain(best) > 0 else None
