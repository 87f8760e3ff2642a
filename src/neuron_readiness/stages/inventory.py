"""Item 2: every device-specific dependency on the path of a request or a training step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, Severity, StageResult
from neuron_readiness.inventory import sources, static
from neuron_readiness.inventory.hit import Hit
from neuron_readiness.recording import inputs
from neuron_readiness.recording.operators import OperatorRecorder, OperatorUse
from neuron_readiness.workload import Workload


def run(context: Context) -> StageResult:
    result = StageResult("inventory", "Inventory of device-specific dependencies")
    pilot = context.pilot
    workload = Workload(pilot, context.reference)
    files = sources.of_workload(context.pilot_path, pilot.setting("code", []), workload.model)
    hits = [h for f in files for h in static.scan(f, context.device.kind)]
    uses, dtypes = reached(context, workload)
    kinds = Counter(h.kind for h in hits)
    unsupported = [h for h in hits if h.supported is False]
    operators = _operators(context, uses)
    unknown = [o for o in operators if o["supported"] is None]
    missing = [o for o in operators if o["supported"] is False]
    model = inputs.identity(workload.model)
    result.facts = {
        "model": model,
        "files": [str(f) for f in files],
        "hits": [dataclasses.asdict(h) for h in hits],
        "hits_by_kind": dict(kinds),
        "unsupported": len(unsupported),
        "operators": len(operators),
        "operators_without_device_kernel": [o["overload"] for o in missing],
        "operators_unknown": [o["overload"] for o in unknown],
        "dtypes": dtypes,
        "phases": sorted({u.phase for u in uses}),
        "pilot_parts": pilot.provided,
        "simplified": pilot.part("simplified"),
    }
    result.ledgers["reached"] = [
        {**dataclasses.asdict(u), "supported": context.device.supports(u.overload)} for u in uses
    ]
    result.ledgers["inventory"] = [dataclasses.asdict(h) for h in hits]
    if model["sha256"] is not None:
        size = ", ".join(f"{k} {n:,}" for k, n in model["dtypes"].items())
        result.measured(
            f"model {model['class']}: {model['parameters']:,} parameters ({size}), weights sha256 "
            f"{model['sha256'][:12]}",
            "names, dtypes, shapes and bytes of the state dict, before anything ran",
        )
    result.measured(
        f"{len(hits)} device-specific dependencies in {len(files)} files: "
        + (", ".join(f"{k} {n}" for k, n in kinds.most_common()) or "none"),
        "syntax trees with imports and aliases resolved",
    )
    result.measured(
        f"{len(operators)} operators reached in the phases {', '.join(result.facts['phases'])}",
        f"a dispatch mode on {context.options.reference}, all cases",
    )
    _support(result, missing, unknown, len(operators))
    if pilot.part("simplified"):
        result.open(f"simplified: {pilot.part('simplified')}", "the pilot leaves it out")
    for name, part in pilot.misspelt():
        text = f"the pilot's {name!r} is no part of a pilot; {part!r} is"
        result.findings.append(Finding(text, "note", str(context.pilot_path), f"call it {part!r}"))
    for hit in hits:
        result.findings.append(_finding(hit))
    return result


def reached(context: Context, workload: Workload) -> tuple[list[OperatorUse], dict[str, int]]:
    """Operators of every request, and of one training step or loss, by phase and line."""
    adapter = workload.adapter
    recorder = OperatorRecorder(adapter.device, adapter.synchronize)
    pilot = context.pilot
    with recorder:
        for case in pilot.cases("requests"):
            workload.request(case, recorder.phase)
    batches = pilot.cases("train")
    if pilot.trains and batches:
        with recorder, recorder.phase("training step"):
            workload.train(batches[0])
    elif pilot.part("loss") is not None:
        with recorder, recorder.phase("loss"):
            loss = workload.loss((batches or pilot.cases("requests"))[0])
            if loss is not None and loss.requires_grad:
                loss.backward()
    return list(recorder.uses.values()), dict(recorder.dtypes)


def _operators(context: Context, uses: list[OperatorUse]) -> list[dict[str, Any]]:
    """One row for each overload that is to run on the device, with documented support."""
    rows: dict[str, dict[str, Any]] = {}
    for use in uses:
        if use.phase in ("data", "host-to-device", "post-processing", "logging"):
            continue
        row = rows.setdefault(
            use.overload,
            {
                "overload": use.overload,
                "supported": context.device.supports(use.overload),
                "line": use.line,
                "count": 0,
            },
        )
        row["count"] += use.count
    return sorted(rows.values(), key=lambda r: -r["count"])


def _support(result: StageResult, missing: list[Any], unknown: list[Any], total: int) -> None:
    if unknown and len(unknown) == total:
        result.open("documented support of the operators", "the adapter has no operator table")
        return
    result.documented(
        f"{total - len(missing) - len(unknown)} of {total} operators have a device kernel, "
        f"{len(missing)} run on the host, {len(unknown)} are in no table",
        "the backend's own operator table; the execution path is measured apart",
    )
    for row in missing:
        text = f"{row['overload']} has no device kernel in the backend's table"
        result.findings.append(Finding(text, "note", row["line"]))


def _finding(hit: Hit) -> Finding:
    place = Path(hit.file)
    support = {True: "supported", False: "not supported", None: "to be tried"}[hit.supported]
    text = f"{hit.kind}: {hit.text} assumes {hit.assumes or 'nothing'} ({support} on the target)"
    severity: Severity = "gap" if hit.supported is False else "note"
    gate = "dependencies" if hit.supported is False else ""
    return Finding(text, severity, f"{place}:{hit.line}", hit.suggestion, gate)
