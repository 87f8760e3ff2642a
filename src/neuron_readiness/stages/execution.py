"""Item 4: which operators ran on the device and which on the host, case by case; and graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording import graphs
from neuron_readiness.recording.operators import OperatorRecorder, OperatorUse
from neuron_readiness.workload import Workload


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
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:300]
            result.findings.append(Finding(text, "gap", f"case {case.name}"))
            by_case[case.name] = {"failed": text, "host_operators": []}
            continue
        by_case[case.name] = _summary(found)
    if not rows:
        first = next(c["failed"] for c in by_case.values())
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
    }
    _state(result, context, len(cases))
    result.facts["graphs"] = _graphs(result, context, workload)
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
    total = sum(r["seconds"] for r in path) or 1.0
    host = [r for r in path if r["place"] == "host"]
    return {
        "device_calls": sum(r["count"] for r in path if r["place"] == "device"),
        "host_calls": sum(r["count"] for r in host),
        "host_share_of_time": sum(r["seconds"] for r in host) / total,
        "transferred_bytes": sum(r["transferred_bytes"] for r in path),
        "host_operators": sorted({r["overload"] for r in host}),
    }


def _hosts(
    context: Context, rows: list[dict[str, Any]], frequency: dict[str, float]
) -> dict[str, Any]:
    """Host operators of the model's path: in which cases, at which share of the traffic."""
    accepted = dict(context.pilot.setting("accepted_fallbacks", {}))
    table: dict[str, dict[str, Any]] = {}
    for r in rows:
        if r["phase"] != "device" or r["place"] != "host":
            continue
        entry = table.setdefault(
            r["overload"], {"overload": r["overload"], "cases": [], "lines": [], "calls": 0}
        )
        entry["calls"] += r["count"]
        for key, value in (("cases", r["case"]), ("lines", r["line"])):
            if value and value not in entry[key]:
                entry[key].append(value)
    for name, entry in table.items():
        entry["traffic_share"] = min(1.0, sum(frequency.get(c, 0.0) for c in entry["cases"]))
        entry["accepted"] = accepted.get(name) or accepted.get(name.split(".")[0])
    hosts = sorted(table.values(), key=lambda e: -e["calls"])
    return {
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
    for entry in hosts:
        where = entry["lines"][0] if entry["lines"] else ""
        text = (
            f"{entry['overload']} runs on the host in {len(entry['cases'])} of {cases} cases "
            f"({', '.join(entry['cases'][:5])}), {entry['traffic_share']:.1%} of the traffic"
        )
        if entry["accepted"]:
            text += f"; accepted by the pilot: {entry['accepted']}"
            result.findings.append(Finding(text, "note", where))
        else:
            change = "replace it, or accept it in the pilot's `accepted_fallbacks` with a reason"
            result.findings.append(Finding(text, "gap", where, change, "host_operators"))


def _graphs(result: StageResult, context: Context, workload: Workload) -> dict[str, Any] | None:
    wanted = context.pilot.setting("compile", True)
    if wanted is False:
        result.measured("the workload runs eagerly; nothing is compiled as a graph", "pilot")
        return None
    keywords = dict(wanted) if isinstance(wanted, dict) else {}
    requests = context.pilot.cases("requests")
    if not requests:
        result.open("graphs of the model", "inputs('requests') yields nothing to compile with")
        return None
    facts = graphs.examine(workload, requests[0], keywords)
    if facts["failure"] is None:
        result.measured(
            f"torch.compile: {facts['graphs']} graphs, {len(facts['breaks'])} breaks, output "
            f"differs from eager by up to {facts['difference']:.3g}",
            f"backend {facts['backend']}; a graph break is not a failure of the backend",
        )
    else:
        text = f"torch.compile fails in {facts['failure']}: {facts['error']}"
        result.measured(text, f"backend {facts['backend']}")
        result.findings.append(Finding(text, "gap", gate="compile"))
    for entry in facts["breaks"]:
        result.findings.append(
            Finding(f"graph break: {entry['reason']}", "note", entry["line"], entry["remedy"])
        )
    return facts
