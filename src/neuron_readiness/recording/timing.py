"""Durations with explicit synchronisation, and their summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

BOUNDARY = (
    "from before the request's own preprocessing to after a device synchronise that follows its "
    "post-processing"
)


def timed(synchronize: Callable[[], None], call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of ``call``, begun and ended with a synchronise, and its result."""
    synchronize()
    start = time.perf_counter()
    result = call()
    synchronize()
    return time.perf_counter() - start, result


def quantile(values: list[float], share: float) -> float:
    """The nearest-rank quantile; NaN without values."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summary(seconds: list[float]) -> dict[str, float | int]:
    """Count, p50, p95, p99, mean, least and largest."""
    return {
        "count": len(seconds),
        "p50_s": quantile(seconds, 0.5),
        "p95_s": quantile(seconds, 0.95),
        "p99_s": quantile(seconds, 0.99),
        "mean_s": sum(seconds) / len(seconds) if seconds else math.nan,
        "min_s": min(seconds, default=math.nan),
        "max_s": max(seconds, default=math.nan),
    }
