"""Item 7: where the time of a request went, and what memory the intended load needs."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Iterator
from functools import partial

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording.attempts import Attempts
from neuron_readiness.recording.timing import quantile
from neuron_readiness.run import faults
from neuron_readiness.workload import PHASES, Workload, path_name


class PhaseClock:
    """Seconds by phase, with a synchronise at each boundary."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.seconds: dict[str, list[float]] = {name: [] for name in PHASES}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._adapter.synchronize()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._adapter.synchronize()
            self.seconds[name].append(time.perf_counter() - start)


def run(context: Context) -> StageResult:
    result = StageResult("profile", "Profile")
    workload = context.pair[0]
    if context.pilot.compiles is not None:  # the last stage that calls this model
        workload.compile({"backend": context.device.compile_backend, **context.pilot.compiles})
    attempts = Attempts(result, context, "profiled")
    every = context.pilot.operations()
    for case in every:
        attempts(case, partial(workload.request, case))
    clock = PhaseClock(workload.adapter)
    for _ in range(max(1, context.options.repeats // len(every))):
        for case in every:
            attempts(case, partial(workload.request, case, clock))
    result.facts = {"attempted": attempts.count, "failed_requests": len(attempts.failed)}
    cases = attempts.usable(every)
    if not cases:
        result.open("where the time goes, and memory", "no case runs")
        return result
    medians = {name: quantile(s, 0.5) for name, s in clock.seconds.items() if s}
    medians = {name: medians.get(name, 0.0) for name in PHASES}
    stages = _stages(context, medians)
    total = sum(stages.values()) or 1.0
    result.facts |= {
        "stages_s": stages,
        "shares": {n: s / total for n, s in stages.items()},
        "unit": _unit(cases),
        "largest": max(stages, key=lambda n: stages[n]),
        "compile_s": context.earlier.get("shapes", {}).get("compile_seconds"),
    }
    text = ", ".join(f"{n} {s / total:.0%}" for n, s in stages.items())
    path = path_name(context.pilot, context.device)
    result.measured(
        f"steady {_unit(cases)}: {text}",
        f"{path}; medians by phase, a synchronise at each boundary",
    )
    result.measured(
        f"{len(attempts.failed)} of {attempts.count} profiled {_unit(cases)}s failed",
        "every attempt is counted; the shares are of those that came to their end",
    )
    _narrative(result, context)
    compile_s = result.facts["compile_s"]
    if compile_s is None:
        result.open("time spent compiling", "see the shape ledger")
    else:
        result.measured(f"compiling all shapes once: {compile_s:.2f} s", "the shape ledger")
    _memory(result, context, workload, cases)
    return result


def _narrative(result: StageResult, context: Context) -> None:
    """What to change first: the largest stage, and the operator that takes most of it."""
    largest = str(result.facts["largest"])
    share = result.facts["shares"][largest]
    execution = context.earlier.get("execution", {})
    where = ""
    if largest == "device" and execution.get("by_time"):
        first = execution["by_time"][0]
        where = first["line"]
        remedy = (
            f"{first['overload']} takes {first['share']:.0%} of the operators' time: "
            "fewer or larger calls of it, another dtype, or a fused form"
        )
    elif largest == "host fallback" and execution.get("host_operators"):
        first = max(execution["host_operators"], key=lambda e: e["share_of_time"])
        where = first["lines"][0] if first["lines"] else ""
        remedy = f"replace {first['overload']}, which runs on the host"
    else:
        remedy = _REMEDIES.get(largest, "")
    text = f"{largest} is the largest stage, {share:.0%} of a steady {result.facts['unit']}"
    result.findings.append(Finding(text, "note", where, remedy))


_REMEDIES = {
    "data": "prepare requests ahead of time, in other threads or processes",
    "host-to-device": "move fewer and larger tensors, and move them once",
    "post-processing": "do it on the device, or read results once and late",
    "logging": "log less often, and read values late",
}


def _unit(cases: list[Case]) -> str:
    return "step" if cases[0].train else "request"


def _stages(context: Context, medians: dict[str, float]) -> dict[str, float]:
    """The phases, with the host operators' share of the device phase set apart."""
    execution = context.earlier.get("execution", {}).get("by_case", {})
    shares = [c["host_share_of_time"] for c in execution.values() if "host_share_of_time" in c]
    host = sum(shares) / len(shares) if shares else 0.0
    device = medians["device"]
    return {
        "data": medians["data"],
        "host-to-device": medians["host-to-device"],
        "device": device * (1 - host),
        "host fallback": device * host,
        "post-processing": medians["post-processing"],
        "logging": medians["logging"],
    }


def _memory(result: StageResult, context: Context, workload: Workload, cases: list[Case]) -> None:
    adapter = workload.adapter
    parameters = trees.num_bytes(workload.parameters())
    largest = max(cases, key=lambda c: trees.num_bytes((c.args, c.kwargs)))
    concurrency = 1 if largest.train else int(context.pilot.setting("concurrency", 1))
    adapter.synchronize()
    adapter.reset_peak_memory()
    errors = _together(workload, largest, concurrency)
    adapter.synchronize()
    figures = adapter.memory()
    peak = None if figures is None else figures.get("peak")
    if peak is not None and largest.train:  # beside the model that the other stages compare with
        peak = max(0, peak - parameters)
    capacity = context.pilot.part("hbm_bytes") or (figures or {}).get("capacity")
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result.facts["memory"] = {
        "parameters_bytes": parameters,
        "peak_bytes": peak,
        "concurrency": concurrency,
        "capacity_bytes": capacity,
        "headroom": None if not peak or not capacity else 1 - peak / capacity,
        "process_peak_bytes": process,
        "failed_requests": len(errors),
        "note": adapter.memory_note(),
    }
    result.measured(
        f"parameters and buffers {parameters} bytes; process high-water mark {process} bytes",
        "sizes of tensors; getrusage",
    )
    if peak is None:
        result.open("peak device memory", "the adapter has no memory statistics")
    else:
        note = adapter.memory_note()
        result.measured(
            f"peak {peak} bytes with {concurrency} {_unit(cases)}s of case {largest.name} at once",
            note or "the backend's own statistics",
        )
    if peak is not None and capacity:
        result.measured(f"headroom {1 - peak / capacity:.1%} of {capacity} bytes", "peak/capacity")
    else:
        result.open("headroom to the target's memory", "peak or capacity is not known")
    for error in errors:
        result.findings.append(
            Finding(f"concurrent request: {error}", "gap", largest.name, gate="concurrent_requests")
        )


def _together(workload: Workload, case: Case, count: int) -> list[str]:
    """Runs ``count`` requests at once; what failed, as text."""
    errors: list[str] = []
    start = threading.Barrier(count)

    def serve() -> None:
        start.wait()
        try:
            workload.request(case)
        except faults.raised() as error:
            errors.append(f"{type(error).__name__}: {error}"[:300])

    threads = [threading.Thread(target=serve) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
