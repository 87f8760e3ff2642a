"""Tasks that serve requests or take training steps: the shape ledger and a whole worker's times."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter, CompileEvent
from neuron_readiness.context import Context
from neuron_readiness.pilot import Case
from neuron_readiness.recording.recompiles import RecompileLimit
from neuron_readiness.recording.timing import quantile, summary, timed
from neuron_readiness.recording.turns import in_turns, middle
from neuron_readiness.run import faults
from neuron_readiness.workload import Workload, on_path

_COST_ROUNDS, _LEAST_COST_ROUNDS = 21, 5
_COST_S = 30.0
_OVERHEAD_RUNS, _LEAST_RUNS = 41, 7
_OVERHEAD_S = 15.0  # for a long step
_CHECKS = 4  # blocks of the steady loop, between which memory is looked at
_RSS_PER_REQUEST = 64 * 1024


def shape_ledger(context: Context, started: float) -> dict[str, Any]:
    """Compilations and steady cost of each shape family, most frequent first."""
    workload = on_path(context.pilot, context.device)
    adapter = workload.adapter
    families: dict[str, list[Case]] = {}
    for case in context.pilot.operations():
        family = trees.shape_text(workload.prepared(case))
        families.setdefault(family, []).append(case)
    order = sorted(families.items(), key=lambda kv: -sum(c.frequency for c in kv[1]))
    adapter.synchronize()
    rows = []
    with RecompileLimit() as limit:
        for family, cases in order:
            rows.append(_family(workload, family, cases))
            rows[-1]["past_recompile_limit"] = bool(limit.reached)
    _costs(workload, [(r, cases[0]) for r, (_, cases) in zip(rows, order, strict=True)])
    return {
        "rows": rows,
        "compile_events_known": adapter.compile_events() is not None,
        "recompile_limit": limit.reached,
    }


def _family(workload: Workload, family: str, cases: list[Case]) -> dict[str, Any]:
    adapter, case = workload.adapter, cases[0]
    row: dict[str, Any] = {
        "family": family,
        "dims": [list(t.shape) for t in trees.tensors(workload.prepared(case))],
        "cases": len(cases),
        "frequency": sum(c.frequency for c in cases),
        "compiles": None,
        "compile_seconds": None,
        "tiers": "",
        "first_s": None,
        "cost_s": None,
        "processor_s": None,
        "seconds": {},  # by clock, a value for each round
        "error": "",
    }
    last = max((e.number for e in adapter.compile_events() or []), default=-1)
    try:
        row["first_s"], _ = timed(adapter.synchronize, lambda: workload.request(case))
        workload.request(case)
        adapter.synchronize()
    except faults.raised() as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    events = adapter.compile_events()
    if events is not None:
        row |= _events([e for e in events if e.number > last])
    return row


def _costs(workload: Workload, families: list[tuple[dict[str, Any], Case]]) -> None:
    """Steady cost of the families that run, in turns: they are held against each other."""
    running = [(row, case) for row, case in families if not row["error"]]

    def step(row: dict[str, Any], case: Case) -> None:
        try:
            workload.request(case)
            workload.adapter.synchronize()
        except faults.raised() as error:
            row["error"] = row["error"] or f"{type(error).__name__}: {error}"[:300]

    steps = [partial(step, row, case) for row, case in running]
    found = in_turns(steps, _COST_ROUNDS, _LEAST_COST_ROUNDS, _COST_S)
    for (row, _), seconds in zip(running, found, strict=True):
        if not row["error"]:
            row["seconds"] = seconds
            row["cost_s"] = quantile(seconds["wall"], 0.5)
            row["processor_s"] = quantile(seconds["cpu"], 0.5)


def _events(events: list[CompileEvent]) -> dict[str, Any]:
    tiers = sorted({e.tier for e in events})
    return {
        "compiles": sum(e.tier == "compiled" for e in events),
        "compile_seconds": sum(e.seconds for e in events),
        "tiers": " ".join(f"{t}:{sum(e.tier == t for e in events)}" for t in tiers),
    }


def serve(context: Context, started: float, side: str, compiled: bool = True) -> dict[str, Any]:
    """A worker from its start: set-up, first use of each case, then a steady mix of requests."""
    adapter = context.device if side == "device" else context.reference
    workload = on_path(context.pilot, adapter, compiled=compiled)
    adapter.synchronize()
    setup_s = time.perf_counter() - started
    cases = context.pilot.operations()
    firsts, failed = [], 0
    usable = []
    with RecompileLimit() as limit:
        for case in cases:
            try:
                firsts.append(timed(adapter.synchronize, partial(workload.request, case))[0])
                usable.append(case)
            except faults.raised():  # counted: a run that failed is part of the result
                failed += 1
    if not usable:
        raise RuntimeError("every case failed; the execution path says how")
    mix = _mix(usable, context.options.repeats)
    for case in usable:
        workload.request(case)
    rows, leak, failures = _steady(workload, mix)
    failed += failures
    elapsed = time.perf_counter() - started
    overhead = recording_overhead(workload, usable[0], _OVERHEAD_RUNS)
    seconds = [r["seconds"] for r in rows]
    events = adapter.compile_events()
    return {
        "side": side,
        "unit": "step" if cases[0].train else "request",
        "setup_s": setup_s,
        "first_s": firsts[0],
        "first_uses_s": sum(firsts),
        "steady": summary(seconds),
        "throughput_per_s": len(seconds) / sum(seconds),
        "attempted": len(cases) + len(mix) + len(usable),
        "failed": failed,
        "elapsed_s": elapsed,
        "useful_per_elapsed_s": (len(firsts) + len(seconds)) / elapsed,
        "compiles": None if events is None else sum(e.tier == "compiled" for e in events),
        "recompile_limit": limit.reached,
        "leak": leak,
        "recording_overhead": overhead.share,
        "recording_overhead_noise": overhead.noise,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "timings": rows,
    }


def _mix(cases: list[Case], count: int) -> list[Case]:
    """``count`` requests in proportion to frequency, spread evenly and in a fixed order."""
    total = sum(c.frequency for c in cases) or 1.0
    owed = dict.fromkeys(range(len(cases)), 0.0)
    chosen = []
    for _ in range(count):
        for i, case in enumerate(cases):
            owed[i] += (case.frequency or 0.0) / total
        best = max(owed, key=lambda i: owed[i])
        owed[best] -= 1.0
        chosen.append(cases[best])
    return chosen


def _steady(workload: Workload, mix: list[Case]) -> tuple[list[dict[str, Any]], str, int]:
    """Times of the mix, what leaks, and how many failed."""
    adapter = workload.adapter
    rows: list[dict[str, Any]] = []
    failed = 0
    marks = [_memory(adapter)]
    size = max(1, len(mix) // _CHECKS)
    for number, case in enumerate(mix):
        try:
            seconds, _ = timed(adapter.synchronize, partial(workload.request, case))
            rows.append({"number": number, "case": case.name, "seconds": seconds})
        except faults.raised():
            failed += 1
        if (number + 1) % size == 0:
            marks.append(_memory(adapter))
    return rows, _leak(marks, size), failed


def _memory(adapter: Adapter) -> dict[str, int]:
    """Live tensors, device bytes and resident bytes of the process."""
    gc.collect()
    count = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    pages = Path("/proc/self/statm")
    resident = int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0
    return {
        "tensors": count,
        "device_bytes": (adapter.memory() or {}).get("allocated", 0),
        "resident_bytes": resident,
    }


def _leak(marks: list[dict[str, int]], requests: int) -> str:
    """What grows at every mark with every request, in words; "" if nothing does."""
    limits = {"tensors": 1, "device_bytes": 1, "resident_bytes": _RSS_PER_REQUEST}
    for name, least in limits.items():
        values = [m[name] for m in marks]
        steps = [b - a for a, b in itertools.pairwise(values)]
        if len(steps) >= 3 and min(steps) >= least * requests:
            return f"{name} grow with every request: {values[0]} to {values[-1]}"
    return ""


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Median seconds of a step without and with recording, the median of the paired differences as
    a ``share`` of the bare step, and ``noise``, twice that median's standard error."""

    bare_s: float
    recorded_s: float
    share: float
    noise: float


def recording_overhead(
    workload: Workload,
    case: Case,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Overhead:
    """Bare and recorded steps in turns, in changing order, so that a machine that others load too
    disturbs both alike. ``clock``: seconds, of the wall or of the process's own work."""
    synchronize = workload.adapter.synchronize
    rows: list[dict[str, Any]] = []

    def bare() -> None:
        workload.request(case)
        synchronize()

    def recorded() -> None:
        seconds, _ = timed(synchronize, lambda: workload.request(case))
        rows.append({"number": len(rows), "case": case.name, "seconds": seconds})

    times: dict[Callable[[], None], list[float]] = {bare: [], recorded: []}
    begin = time.perf_counter()
    for number in range(repeats):
        if number >= _LEAST_RUNS and time.perf_counter() - begin > _OVERHEAD_S:
            break
        for step in (bare, recorded) if number % 2 else (recorded, bare):
            start = clock()
            step()
            times[step].append(clock() - start)
    whole = quantile(times[bare], 0.5)
    gaps = [r - b for r, b in zip(times[recorded], times[bare], strict=True)]
    gap, noise = middle(gaps)
    return Overhead(whole, quantile(times[recorded], 0.5), gap / whole, noise / whole)
