"""Item 2: every device-specific dependency on the path of a request or a training step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from typing import Any

import torch

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, Severity, StageResult
from neuron_readiness.inventory import reach, sources, static
from neuron_readiness.inventory.hit import NOT_SEEN, Hit
from neuron_readiness.pilot import Case
from neuron_readiness.recording import inputs
from neuron_readiness.recording.attempts import Attempts
from neuron_readiness.recording.operators import OperatorRecorder, OperatorUse
from neuron_readiness.workload import Workload


def run(context: Context) -> StageResult:
    result = StageResult("inventory", "Inventory of device-specific dependencies")
    pilot = context.pilot
    attempts = Attempts(result, context, "")
    # What is compiled runs eagerly here: its lines and operators are seen one by one.
    with context.lines, torch.compiler.set_stance("force_eager"):
        workload = Workload(pilot, context.reference)
    model = inputs.identity(workload.model)
    files = sources.of_workload(context.pilot_path, pilot.setting("code", []), workload.model)
    context.lines.also(files)
    with context.lines, torch.compiler.set_stance("force_eager"):
        uses, dtypes = reached(context, workload, attempts)
    attempts.blame(pilot.cases("requests") + pilot.cases("train"))
    hits = [h for f in files for h in static.scan(f, context.device.kind)]
    hits = reach.mark(hits, context.lines.of, files, _LATER) if not context.lines.blind else hits
    kinds = Counter(h.kind for h in hits)
    unsupported = [h for h in hits if h.supported is False]
    unseen = [h for h in hits if h.reach == NOT_SEEN]
    operators = _operators(context, uses)
    unknown = [o for o in operators if o["supported"] is None]
    missing = [o for o in operators if o["supported"] is False]
    result.facts = {
        "model": model,
        "files": [str(f) for f in files],
        "hits": [dataclasses.asdict(h) for h in hits],
        "hits_by_kind": dict(kinds),
        "hits_by_reach": dict(Counter(h.reach for h in hits)),
        # What no case reaches is told apart: it may be dead, or a case may be missing.
        "unsupported": sum(h.reach != NOT_SEEN for h in unsupported),
        "unsupported_not_seen": sum(h.reach == NOT_SEEN for h in unsupported),
        "failed_requests": len(attempts.failed),
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
    _reach(result, context, unseen)
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


# Parts that run in other stages, some of them in other processes.
_LATER = (
    "launch", "save_checkpoint", "load_checkpoint", "pad", "unpad", "decide", "scores",
    "task_metric", "optimizer", "train_step", "loss",
)  # fmt: skip


def _reach(result: StageResult, context: Context, unseen: list[Hit]) -> None:
    """Which hits are on the path of a request or a step."""
    if context.lines.blind:
        result.open("which dependencies are on the path", context.lines.blind)
        return
    found = result.facts["hits_by_reach"]
    if found:
        result.measured(
            "of these dependencies: " + ", ".join(f"{n} {kind}" for kind, n in found.items()),
            "lines of the workload's files that ran: import, model, every request and hard case, "
            f"a step of each batch or the loss, on {context.options.reference}; unknown is what "
            "runs in other stages or processes",
        )
    if unseen:
        wrong = result.facts["unsupported_not_seen"]
        result.open(
            f"{len(unseen)} dependencies in code that no case ran, {wrong} of them not supported",
            "add a case that reaches it, or take it out",
        )


def reached(
    context: Context, workload: Workload, attempts: Attempts
) -> tuple[list[OperatorUse], dict[str, int]]:
    """Operators of every request, and of training steps or the loss, by phase and line."""
    adapter = workload.adapter
    recorder = OperatorRecorder(adapter.device, adapter.synchronize)
    pilot = context.pilot
    with recorder:
        for case in pilot.cases("requests") + pilot.cases("hard"):
            attempts(case, partial(workload.request, case, recorder.phase))
    batches = pilot.cases("train")
    if pilot.trains and batches:
        with recorder, recorder.phase("training step"):
            for batch in batches[: context.options.train_steps]:
                attempts(batch, partial(workload.train, batch))
    elif pilot.part("loss") is not None:
        case = (batches or pilot.cases("requests"))[0]
        with recorder, recorder.phase("loss"):
            attempts(case, partial(_backward, workload, case))
    return list(recorder.uses.values()), dict(recorder.dtypes)


def _backward(workload: Workload, case: Case) -> None:
    loss = workload.loss(case)
    if loss is not None and loss.requires_grad:
        loss.backward()


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
    support = {True: "supported", False: "not supported", None: "to be tried"}[hit.supported]
    text = f"{hit.kind}: {hit.text} assumes {hit.assumes or 'nothing'} ({support} on the target)"
    wrong = hit.supported is False and hit.reach != NOT_SEEN
    severity: Severity = "gap" if wrong else "note"
    gate = "dependencies" if wrong else ""
    return Finding(f"{text}; {hit.reach}", severity, hit.place, hit.suggestion, gate)
