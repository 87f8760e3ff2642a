"""Item 4: which operators ran on the device and which on the host, case by case; and graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording import graphs
from neuron_readiness.recording.operators import OperatorRecorder, OperatorUse
from neuron_readiness.run import faults
from neuron_readiness.workload import Workload

_LARGEST = 12  # operators in the table of what takes the time


def run(context: Context) -> StageResult:
    result = StageResult("execution", "Execution path")
    workload = context.pair[0]
    pilot = context.pilot
    cases = pilot.cases("requests") + pilot.cases("hard")
    cases += pilot.cases("train") if pilot.trains else []
    rows: list[dict[str, Any]] = []
    by_case: dict[str, dict[str, Any]] = {}
    for case in cases:
        try:
            rows += (found := _observe(workload, case))
        except faults.raised() as error:
            where = faults.place(error, context.pilot_path)
            text = f"{type(error).__name__}: {error}"[:300] + f" ({where})"
            result.findings.append(Finding(text, "gap", f"case {case.name}"))
            by_case[case.name] = {"failed": text, "host_operators": []}
            continue
        by_case[case.name] = _summary(found)
    failures = [c["failed"] for c in by_case.values() if "failed" in c]
    if not rows and failures:
        first = failures[0]
        text = f"no case runs on the device; the first raises {first}"
        result.faults.append(Fault("pilot-raised", text, "unknown"))
        return result
    frequency = _shares(cases)
    result.ledgers["operators"] = rows
    result.facts = {
        "by_case": by_case,
        **_hosts(context, rows, frequency),
        "fallback_list": workload.adapter.host_operators() is not None,
        "operators": len({r["overload"] for r in rows if r["place"] in ("device", "host")}),
        "transferred_bytes": sum(r["transferred_bytes"] for r in rows),
        "by_time": _by_time(rows, frequency),
    }
    _state(result, context, len(cases))
    raising = {name for name, case in by_case.items() if "failed" in case}
    result.facts["graphs"] = _graphs(result, context, workload, raising)
    return result


def _shares(cases: list[Case]) -> dict[str, float]:
    """Each ordinary case's share of its kind: of the requests, or of the training steps."""
    ordinary = [c for c in cases if not c.hard]
    totals = {k: sum(c.frequency for c in ordinary if c.train is k) for k in (True, False)}
    return {c.name: c.frequency / (totals[c.train] or 1.0) for c in ordinary}


def _observe(workload: Workload, case: Case) -> list[dict[str, Any]]:
    """Operators of one request; first untimed, so that nothing is compiled in a timed run."""
    adapter = workload.adapter
    workload.request(case)
    adapter.synchronize()
    adapter.clear_tracking()
    recorder = OperatorRecorder(adapter.device, adapter.synchronize, timed=True)
    with recorder:
        workload.request(case, recorder.phase)
    adapter.synchronize()
    hosts = {h.overload: h for h in adapter.host_operators() or []}
    rows = [dataclasses.asdict(_placed(use, hosts)) for use in recorder.uses.values()]
    seen = {r["overload"] for r in rows if r["place"] == "host"}
    for overload, host in hosts.items():
        if overload not in seen:  # inside a composite kernel, below what the mode sees
            inside = OperatorUse(overload, "device", host.line, "host", host.count or 1)
            rows.append(dataclasses.asdict(inside))
    return [{"case": case.name, **r} for r in rows]


def _placed(use: OperatorUse, hosts: dict[str, Any]) -> OperatorUse:
    """Marks an operator of the device's path that the backend reports as run on the host, with its
    tensors counted as moved both ways."""
    name = use.overload
    if use.phase == "device" and name in hosts and use.place == "device":
        return dataclasses.replace(use, place="host", transferred_bytes=use.bytes)
    return use


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = [r for r in rows if r["phase"] == "device"]
    moved = sum(r["transferred_bytes"] for r in rows)
    total = sum(r["seconds"] for r in path) or 1.0
    host = [r for r in path if r["place"] == "host"]
    return {
        "device_calls": sum(r["count"] for r in path if r["place"] == "device"),
        "host_calls": sum(r["count"] for r in host),
        "host_share_of_time": sum(r["seconds"] for r in host) / total,
        "transferred_bytes": moved,  # in every phase: also inputs on their way to the device
        "host_operators": sorted({r["overload"] for r in host}),
    }


def _by_time(rows: list[dict[str, Any]], frequency: dict[str, float]) -> list[dict[str, Any]]:
    """The operators that take most of the time, cases weighted by their share of the traffic."""
    table: dict[tuple[str, str], dict[str, Any]] = {}
    total = 0.0
    for r in rows:
        weighted = r["seconds"] * frequency.get(r["case"], 0.0)
        total += weighted
        key = (r["overload"], r["place"])
        entry = table.setdefault(
            key, {"overload": key[0], "place": key[1], "calls": 0, "seconds": 0.0, "line": ""}
        )
        entry["calls"] += r["count"]
        if weighted >= entry["seconds"] or not entry["line"]:
            entry["line"] = r["line"]
        entry["seconds"] += weighted
    largest = sorted(table.values(), key=lambda e: -e["seconds"])[:_LARGEST]
    return [{**e, "share": e["seconds"] / (total or 1.0)} for e in largest]


def _hosts(
    context: Context, rows: list[dict[str, Any]], frequency: dict[str, float]
) -> dict[str, Any]:
    """Host operators of the model's path: in which cases, at which share of the traffic."""
    accepted = dict(context.pilot.setting("accepted_fallbacks", {}))
    seconds: dict[str, float] = {}
    for r in rows:
        if r["phase"] == "device":
            seconds[r["case"]] = seconds.get(r["case"], 0.0) + r["seconds"]
    table: dict[str, dict[str, Any]] = {}
    for r in rows:
        if r["phase"] != "device" or r["place"] != "host":
            continue
        entry = table.setdefault(
            r["overload"],
            {
                "overload": r["overload"],
                "cases": [],
                "lines": [],
                "calls": 0,
                "bytes": 0,
                "share_of_time": 0.0,  # of the case in which it is largest
            },
        )
        entry["calls"] += r["count"]
        entry["bytes"] += r["transferred_bytes"]
        entry["share_of_time"] = max(
            entry["share_of_time"], r["seconds"] / (seconds.get(r["case"]) or 1.0)
        )
        for key, value in (("cases", r["case"]), ("lines", r["line"])):
            if value and value not in entry[key]:
                entry[key].append(value)
    for name, entry in table.items():
        entry["traffic_share"] = min(1.0, sum(frequency.get(c, 0.0) for c in entry["cases"]))
        entry["accepted"] = accepted.get(name) or accepted.get(name.split(".")[0])
    hosts = sorted(table.values(), key=lambda e: -e["calls"])
    reached = {n for e in hosts for n in (e["overload"], e["overload"].split(".")[0])}
    return {
        "accepted_but_unseen": [n for n in accepted if n not in reached],
        "host_operators": hosts,
        "unaccepted_host_operators": sum(not e["accepted"] for e in hosts),
        "rare_host_operators": [
            e["overload"] for e in hosts if len(e["cases"]) < len(frequency) or not frequency
        ],
    }


def _state(result: StageResult, context: Context, cases: int) -> None:
    facts = result.facts
    hosts = facts["host_operators"]
    if facts["fallback_list"] or not context.device.may_fall_back:
        source = (
            "the backend's fallback list, beside a dispatch mode"
            if facts["fallback_list"]
            else "a dispatch mode; this backend raises where it has no kernel"
        )
        result.measured(
            f"{facts['operators']} operators over {cases} cases, {len(hosts)} of them on the host",
            source,
        )
    else:
        facts["unaccepted_host_operators"] = facts["unaccepted_host_operators"] or None
        result.open(
            "whether operators fall back inside the backend",
            "the backend has no fallback list; only tensors on the host were seen",
        )
    result.measured(
        f"{facts['transferred_bytes']} bytes cross between host and device, all cases once",
        "sizes of tensors at copies and at host operators; times are of single operators, "
        "synchronised one by one, and are shares, not speeds",
    )
    for name in facts["accepted_but_unseen"]:
        text = f"the pilot accepts a fallback of {name}, which no case reached"
        result.findings.append(Finding(text, "note", "", "take it out, or add the case"))
    for entry in hosts:
        where = entry["lines"][0] if entry["lines"] else ""
        text = (
            f"{entry['overload']} runs on the host in {len(entry['cases'])} of {cases} cases "
            f"({', '.join(entry['cases'][:5])}), {entry['traffic_share']:.1%} of the traffic; up "
            f"to {entry['share_of_time']:.1%} of a request's operator time"
        )
        if entry["accepted"]:
            text += f"; accepted by the pilot: {entry['accepted']}"
            result.findings.append(Finding(text, "note", where))
        else:
            change = "replace it, or accept it in the pilot's `accepted_fallbacks` with a reason"
            result.findings.append(Finding(text, "gap", where, change, "host_operators"))


def _graphs(
    result: StageResult, context: Context, workload: Workload, raising: set[str]
) -> dict[str, Any] | None:
    """Graphs of the cases that run eagerly: what the others raise is no compiler failure."""
    wanted = context.pilot.setting("compile", True)
    if wanted is False:
        result.measured("the workload runs eagerly; nothing is compiled as a graph", "pilot")
        return None
    pilot = context.pilot
    requests = [c for c in pilot.cases("requests") if c.name not in raising]
    batches = [c for c in pilot.cases("train") if c.name not in raising]
    batches = batches or (requests[:1] if pilot.part("loss") is not None else [])
    for name in sorted(raising):
        result.open(f"graphs of case {name}", "it raises eagerly; nothing is compiled")
    if raising and not requests and not batches:
        return None
    trajectory = context.earlier.get("correctness", {}).get("trajectory") or {}
    facts = graphs.examine(
        workload,
        context.pair[1],
        requests,
        batches,
        dict(wanted) if isinstance(wanted, dict) else {},
        draws=not trajectory.get("comparable", True),
    )
    settings = ", ".join(f"{k}={v}" for k, v in facts["keywords"].items())
    how = f"torch.compile({settings}), cases {', '.join(facts['cases'])}"
    if facts["failure"] is None:
        result.measured(
            f"torch.compile: at most {facts['graphs']} graphs a case, {len(facts['breaks'])} "
            f"breaks, captured regions of {facts['regions']} operators; differs from eager by up "
            f"to {facts['difference']:.3g}; {facts['outside']} tensors leave the tolerance of the "
            f"reference by compiling, {facts['shared']} leave it eagerly too",
            f"{how}; a graph break is not a failure of the backend",
        )
    else:
        cases = ", ".join(facts["failed_cases"])
        text = f"torch.compile fails in {facts['failure']}: {facts['error']}"
        result.measured(text, how)
        result.findings.append(Finding(text, "gap", f"case {cases}", gate="compile"))
    for name in facts["outside_cases"]:
        text = "compiled results leave their tolerance, and not as eager ones do"
        place = f"case {name}"
        result.findings.append(Finding(text, "gap", place, gate="compiled_outputs"))
    if facts["not_compiled"]:
        result.open(
            f"graphs of {len(facts['not_compiled'])} further shapes: "
            f"{', '.join(facts['not_compiled'][:5])}",
            "the rarest are compiled first, to keep the run short",
        )
    for entry in facts["breaks"]:
        text = f"graph break in {len(entry['cases'])} of {len(facts['cases'])} cases"
        text += f" ({', '.join(entry['cases'][:3])}): {entry['reason']}"
        result.findings.append(Finding(text, "note", entry["line"], entry["remedy"]))
    return facts
