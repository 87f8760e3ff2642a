"""Steps timed in turns, so that a machine that others load too disturbs all of them alike."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from neuron_readiness.recording.timing import quantile

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_TELLABLE = 0.1  # of what something is a share of: a larger uncertainty tells nothing


def in_turns(
    steps: Sequence[Callable[[], Any]], rounds: int, least: int, limit_s: float
) -> list[dict[str, list[float]]]:
    """Seconds by clock (``wall``, and ``cpu``: the process's own work) of each step, a value for
    each round. The order turns around from round to round; after ``least`` rounds no new one begins
    once ``limit_s`` have passed."""
    found: list[dict[str, list[float]]] = [{c: [] for c in CLOCKS} for _ in steps]
    begin = time.perf_counter()
    for number in range(rounds):
        if number >= least and time.perf_counter() - begin > limit_s:
            break
        order = range(len(steps))
        for i in order if number % 2 else reversed(order):
            before = {name: clock() for name, clock in CLOCKS.items()}
            steps[i]()
            for name, clock in CLOCKS.items():
                found[i][name].append(clock() - before[name])
    return found


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The median and twice its standard error, from the median absolute deviation as for a normal
    distribution."""
    median = quantile(list(values), 0.5)
    spread = 1.4826 * quantile([abs(v - median) for v in values], 0.5)
    return median, 2 * 1.2533 * spread / math.sqrt(len(values))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the least and largest that it may be at 95%, by ranks alone: right for any
    distribution, also where a few steps waited for somebody else. All of few values."""
    ranked = sorted(values)
    count = len(ranked)
    outside, chance = 0, 0.5**count  # that none of the values is below the true median
    while chance <= 0.025:
        outside += 1
        chance += math.comb(count, outside) * 0.5**count
    outside = max(0, outside - 1)
    return quantile(ranked, 0.5), ranked[outside], ranked[count - 1 - outside]


@dataclasses.dataclass(frozen=True)
class Share:
    """How much more something takes, as a share of what it is held against, by one clock.
    ``noise``: how far from it the true share may be, at 95%."""

    clock: str
    value: float
    noise: float
    seconds: float  # the same, as seconds each
    seconds_noise: float

    @property
    def tellable(self) -> bool:
        """Whether the uncertainty leaves something to say: it is small, or far below the value."""
        return self.noise <= max(_TELLABLE, abs(self.value) / 3)

    def told(self) -> dict[str, Any]:
        """JSON-ready; None where the noise is not known."""
        facts = dataclasses.asdict(self) | {"tellable": self.tellable}
        return {k: None if v == math.inf else v for k, v in facts.items()}

    def __str__(self) -> str:
        name = "processor" if self.clock == "cpu" else self.clock
        give = f" give or take {self.noise:.1%}" if math.isfinite(self.noise) else ""
        return f"{self.value:+.1%}{give} of {name} time"


def added(before: Sequence[float], after: Sequence[float], clock: str) -> Share:
    """What ``after`` takes more than ``before``, by the median of the differences of rounds. The
    median of what it is held against cannot be zero or below: a clock that ticks too coarsely for
    that tells nothing."""
    gap, least, largest = interval([a - b for a, b in zip(after, before, strict=True)])
    noise = max(gap - least, largest - gap)
    whole = quantile(list(before), 0.5)
    if not whole > 0 or len(before) < 3:
        return Share(clock, 0.0, math.inf, gap, math.inf)
    return Share(clock, gap / whole, noise / whole, gap, noise)


def best(shares: Sequence[Share], *, host_computes: bool) -> Share:
    """The share by the wall clock where that can be told; else by the process's own work, where the
    host does the device's work too, so that this is a measure of it; else the wall's."""
    wall, cpu = (next(s for s in shares if s.clock == c) for c in ("wall", "cpu"))
    return cpu if not wall.tellable and host_computes and cpu.tellable else wall


def said(shares: Sequence[Share], chosen: Share) -> str:
    """All clocks in words, and whether they tell anything."""
    text = ", ".join(map(str, shares))
    return text if chosen.tellable else f"too noisy to tell ({text})"
