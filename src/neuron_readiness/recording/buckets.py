"""What padding requests to few shapes would change, from times measured at observed shapes."""

from __future__ import annotations

import itertools
import math
from typing import Any

from neuron_readiness.recording import turns

_LEAST_TRAFFIC = 1000  # requests that compilations are spread over, where the pilot counts fewer


def propose(
    rows: list[dict[str, Any]], most: int = 8, *, host_computes: bool = False
) -> dict[str, Any]:
    """For 1, 2, ... buckets whose boundaries are observed shapes: compilations saved against
    execution added. ``rows``: the shape ledger, with ``dims``, ``frequency``, ``compiles``,
    ``compile_seconds`` and ``seconds``: by clock, the cost in each round of turns.
    ``host_computes``: the process's own work is a measure of the device's.

    ``suggested``: the option whose compilations and requests together take the least time over
    ``requests`` requests, and less than separate compilation does, beyond what is uncertain; None
    where none is better. ``undecided``: an option may be better, which the times are too uneven to
    tell.

    A request in a bucket costs what the bucket's boundary shape was measured to cost. Only
    families that can be ordered (each dimension of one <= that of the next) can share a bucket.
    """
    requests = max(sum(r["frequency"] for r in rows), _LEAST_TRAFFIC)
    nothing: dict[str, Any] = {
        "options": [],
        "suggested": None,
        "undecided": False,
        "why_not": "",
    }
    nothing["requests"] = requests
    usable = [r for r in rows if r["seconds"]]
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
    counts = range(1, min(most, len(ordered) - 1) + 1)
    options = [_option(ordered, count, host_computes) for count in counts]
    return {**nothing, "options": options, **_suggested(options, requests)}


def _fits(smaller: list[list[int]], larger: list[list[int]]) -> bool:
    return len(smaller) == len(larger) and all(
        len(a) == len(b) and all(x <= y for x, y in zip(a, b, strict=True))
        for a, b in zip(smaller, larger, strict=True)
    )


def _option(rows: list[dict[str, Any]], count: int, host_computes: bool) -> dict[str, Any]:
    """The split into ``count`` consecutive buckets with the least execution, by dynamic
    programming over boundaries."""
    clock = "cpu" if host_computes else "wall"
    cost = [turns.middle(r["seconds"][clock])[0] for r in rows]
    weight = [0.0]
    for r in rows:
        weight.append(weight[-1] + r["frequency"])
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [])}]
    for _ in range(count):
        level: dict[int, tuple[float, list[int]]] = {}
        for end in range(1, len(rows) + 1):
            choices = [
                (spent + (weight[end] - weight[start]) * cost[end - 1], [*cuts, end - 1])
                for start, (spent, cuts) in best[-1].items()
                if start < end
            ]
            if choices:
                level[end] = min(choices)
        best.append(level)
    cuts = best[-1][len(rows)][1]
    kept = [rows[i] for i in cuts]
    shares = [_added(rows, cuts, name) for name in turns.CLOCKS]
    share = turns.best(shares, host_computes=host_computes)
    saved = sum(r["compile_seconds"] or 0.0 for r in rows)
    saved -= sum(r["compile_seconds"] or 0.0 for r in kept)
    dearer = share.tellable and share.seconds > share.seconds_noise
    return {
        "buckets": count,
        "boundaries": [r["family"] for r in kept],
        "compiles_saved": sum(r["compiles"] or 0 for r in rows)
        - sum(r["compiles"] or 0 for r in kept),
        "compile_seconds_saved": saved,
        "extra_cost": share.told(),
        "by_clock": {s.clock: s.told() for s in shares},
        "said": turns.said(shares, share),
        # Requests after which separate compilation is cheaper; None: never, or it cannot be told.
        "break_even": saved / share.seconds if dearer else None,
    }


def _added(rows: list[dict[str, Any]], cuts: list[int], clock: str) -> turns.Share:
    """What the average request takes more where each is padded to the next boundary."""
    ends = [next(c for c in cuts if c >= i) for i in range(len(rows))]
    total = sum(r["frequency"] for r in rows) or 1.0
    rounds = range(min(len(r["seconds"][clock]) for r in rows))

    def average(of: list[int], number: int) -> float:
        spent = (
            r["frequency"] * rows[i]["seconds"][clock][number]
            for r, i in zip(rows, of, strict=True)
        )
        return float(sum(spent)) / total

    own = list(range(len(rows)))
    exact, padded = ([average(of, n) for n in rounds] for of in (own, ends))
    return turns.added(exact, padded, clock)


def _suggested(options: list[dict[str, Any]], requests: float) -> dict[str, Any]:
    """The option that saves most in compilations beyond what it adds to the requests."""

    def gain(option: dict[str, Any], sign: float) -> float:
        share = option["extra_cost"]
        if not share["tellable"]:  # nothing is known of its cost
            return sign * math.inf
        each = share["seconds"] - sign * share["seconds_noise"]
        return float(option["compile_seconds_saved"] - requests * each)

    best = max(options, key=lambda o: gain(o, -1.0))
    if gain(best, -1.0) > 0:
        return {"suggested": best, "undecided": False}
    return {"suggested": None, "undecided": any(gain(o, 1.0) > 0 for o in options)}
