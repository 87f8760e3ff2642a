"""Item 6: first use, warm and steady times, in fresh processes with a declared cache state."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, StageResult
from neuron_readiness.recording.timing import BOUNDARY
from neuron_readiness.run import faults
from neuron_readiness.run.child import ChildFailed
from neuron_readiness.workload import path_name

_TELLABLE = 0.03  # of a step; a cost below the noise is not a measurement
_AMORTISE = (10, 100, 1000, 10_000, 100_000)


def run(context: Context) -> StageResult:
    result = StageResult("performance", "Performance")
    runs: dict[str, dict[str, Any]] = {}
    lost: list[Fault] = []
    with tempfile.TemporaryDirectory(dir=context.out) as folder:
        environ = context.device.cache_environment(Path(folder) / "cache")
        path = path_name(context.pilot, context.device)
        filled = "cache filled by the run before" if environ else "as before"
        plan = [
            ("cold", "device", path, "empty persistent cache" if environ else "not known"),
            ("warm", "device", path, filled),
            ("reference", "reference", "eager", "not controlled"),
        ]
        if path != "eager":
            plan.insert(2, ("eager", "device", "eager", "without entries of this path"))
        for name, side, how, cache in plan:
            arguments = {"side": side, "compiled": how != "eager"}
            try:
                runs[name] = context.child("serve", arguments, environ or {})
            except ChildFailed as error:
                runs[name] = {"error": str(error), "attempted": 1, "failed": 1}
                lost.append(faults.of_child(error, context.pilot_path))
            runs[name] |= {"cache": cache, "path": how}
    mixed = _mixed(context)
    result.facts = {"runs": runs, "boundary": BOUNDARY, "path": path, "mixed_path": mixed}
    result.facts["amortisation"] = {}
    result.faults += lost
    _path(result, context, path, mixed)
    for name, facts in runs.items():
        _say(result, name, facts)
    cold, warm = runs["cold"], runs["warm"]
    if "error" not in cold and "error" not in warm:
        _compare(result, context, runs)
    failed = sum(r.get("failed", 0) for r in runs.values())
    result.facts["failed_runs"] = failed
    result.measured(f"{failed} runs failed", "every attempt is counted, none dropped")
    result.ledgers["timings"] = [
        {"run": name, **row} for name, facts in runs.items() for row in facts.get("timings", [])
    ]
    if cold.get("leak"):
        result.faults.append(Fault("leaks", cold["leak"], "workload"))
    return result


def _mixed(context: Context) -> list[str] | None:
    """Operators of the timed cases that the execution path found on the host; None where it was
    not looked at."""
    facts = context.earlier.get("execution", {})
    if "host_operators" not in facts:
        return None
    timed = {case.name for case in context.pilot.operations()}
    return [e["overload"] for e in facts["host_operators"] if timed & set(e["cases"])]


def _path(result: StageResult, context: Context, path: str, mixed: list[str] | None) -> None:
    """What the figures are figures of."""
    if mixed is None:
        result.open("whether these times are those of the device alone", "the execution path")
    elif mixed:
        result.measured(
            f"the path timed is mixed, {path} with {len(mixed)} operators on the host "
            f"({', '.join(mixed[:5])}): these are not times of the device alone",
            "the execution path",
        )
    else:
        result.measured(f"the path timed is {path}, no operator on the host", "the execution path")
    pilot = context.pilot
    if pilot.trains and pilot.cases("train") and pilot.cases("requests"):
        result.open(
            "latency of requests", "the pilot trains, so its steps are timed; see `train_step`"
        )


def _few(count: int) -> str:
    """A p99 needs a hundred values."""
    return "" if count >= 100 else f"; of {count} values the p99 is the largest"


def _say(result: StageResult, name: str, facts: dict[str, Any]) -> None:
    if "error" in facts:
        result.open(f"{name}: the run failed: {facts['error'].splitlines()[0]}", facts["cache"])
        return
    steady = facts["steady"]
    result.measured(
        f"{name}: set-up {facts['setup_s']:.3f} s, first use {facts['first_s']:.3f} s, steady p50 "
        f"{1000 * steady['p50_s']:.3f} ms, p95 {1000 * steady['p95_s']:.3f} ms, p99 "
        f"{1000 * steady['p99_s']:.3f} ms over {steady['count']}",
        f"{facts['path']}; {facts['cache']}; {BOUNDARY}; set-up: imports, model, move to the "
        "device" + _few(steady["count"]),
    )
    if facts["recompile_limit"]:
        result.measured(
            f"{name}: Dynamo reached {facts['recompile_limit']}: some requests ran eagerly",
            "Dynamo's own warning; the shape ledger says which shapes",
        )
    unit = facts["unit"]
    result.measured(
        f"{name}: {facts['throughput_per_s']:.4g} {unit}s/s steady; useful work "
        f"{facts['useful_per_elapsed_s']:.4g} {unit}s/s of the whole job",
        f"whole job: set-up, first uses and {facts['failed']} failures included",
    )
    if facts["load_average"] > facts["cores"]:
        text = f"{name}: other work loads the machine, so that these times are uneven"
        where = f"load average {facts['load_average']:.1f} on {facts['cores']} cores"
        result.findings.append(Finding(text, "note", where, "run it on a quiet machine"))


def _compare(result: StageResult, context: Context, runs: dict[str, dict[str, Any]]) -> None:
    table: dict[str, list[dict[str, float]]] = {}
    for name in ("cold", "warm"):
        facts = runs[name]
        # Compiling each further shape is a one-time cost too: all first uses are set-up.
        once = facts["setup_s"] + facts["first_uses_s"]
        table[name] = [
            {"operations": n, "seconds_each": once / n + facts["steady"]["mean_s"]}
            for n in _AMORTISE
        ]
    result.facts["amortisation"] = table
    served = int(context.pilot.setting("operations_per_worker", 10))
    cold = runs["cold"]
    whole = cold["setup_s"] + cold["first_uses_s"] + served * cold["steady"]["mean_s"]
    share = (cold["setup_s"] + cold["first_uses_s"]) / whole
    result.facts["short_worker"] = {"operations": served, "seconds": whole, "setup_share": share}
    result.measured(
        f"a worker that starts cold and does {served} {cold['unit']}s takes {whole:.2f} s, "
        f"{share:.0%} of it set-up",
        "computed from the measured parts of the cold run",
    )
    eager = runs.get("eager", {})
    if "steady" in eager:
        gain = eager["steady"]["p50_s"] / runs["warm"]["steady"]["p50_s"]
        once = cold["setup_s"] + cold["first_uses_s"] - eager["setup_s"] - eager["first_uses_s"]
        result.facts["compiled_gain"] = gain
        result.measured(
            f"compiled, a steady {cold['unit']} is {gain:.2f} times as fast as eager, and set-up "
            f"with all first uses from an empty cache takes {once:+.2f} s of eager's",
            "p50 of both; capture, lowering and compilation are in the first uses",
        )
    reference = runs["reference"]
    if "error" not in reference:
        ratio = runs["warm"]["steady"]["p50_s"] / reference["steady"]["p50_s"]
        result.facts["steady_ratio_to_reference"] = ratio
        result.measured(
            f"steady p50 is {ratio:.2f} times the reference's",
            "on this machine: it says nothing about another device",
        )
    overhead = runs["warm"].get("recording_overhead")
    if overhead is not None:
        noise = runs["warm"]["recording_overhead_noise"]
        result.facts |= {"recording_overhead": overhead, "recording_overhead_noise": noise}
        text = f"recording costs {overhead:+.1%} of the steady step, give or take {noise:.1%}"
        how = "bare and recorded steps in turns, median of the differences and twice its error"
        if noise <= _TELLABLE:
            result.measured(text, how)
        else:
            result.open(f"{text}: the machine is too uneven to tell", how)
