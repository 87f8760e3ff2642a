"""Item 5: the shape ledger. Which shapes, how often, what each compiles, what bucketing changes."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult
from neuron_readiness.recording import buckets, padding
from neuron_readiness.run import faults
from neuron_readiness.workload import path_name


def run(context: Context) -> StageResult:
    result = StageResult("shapes", "Shape ledger")
    with tempfile.TemporaryDirectory(dir=context.out) as folder:
        environ = context.device.cache_environment(Path(folder) / "cache") or {}
        answer = context.child("shape_ledger", {}, environ)
    rows: list[dict[str, Any]] = answer["rows"]
    total = sum(r["frequency"] for r in rows) or 1.0
    rows.sort(key=lambda r: -r["frequency"])
    covered = 0.0
    for r in rows:
        covered += r["frequency"] / total
        r |= {"share": r["frequency"] / total, "cumulative_share": covered}
    result.ledgers["shapes"] = rows
    known = answer["compile_events_known"]
    compiles = sum(r["compiles"] or 0 for r in rows)
    result.facts = {
        "families": len(rows),
        "requests": sum(r["cases"] for r in rows),
        "frequencies": "equal" if _equal(context) else "given",
        "path": path_name(context.pilot, context.device),
        "failed_families": [r["family"] for r in rows if r["error"]],
        "shapes_for_95_percent": _needed(rows, 0.95),
        "compiles": compiles if known else None,
        "compile_seconds": sum(r["compile_seconds"] or 0 for r in rows) if known else None,
        # A family after the first that still compiles: new shapes specialise.
        "families_that_compile": sum(bool(r["compiles"]) for r in rows) if known else None,
        # Shapes first seen once Dynamo had given up: a new one runs eagerly.
        "recompile_limit": answer["recompile_limit"],
        "past_recompile_limit": [r["family"] for r in rows if r["past_recompile_limit"]],
        "coverage": [[i + 1, r["cumulative_share"]] for i, r in enumerate(rows)],
        "cache": "empty persistent cache" if environ else "the backend's cache state is not known",
        "bucketing": buckets.propose(rows, host_computes=context.device.host_computes()),
        "padding": None,
    }
    for r in rows:
        del r["seconds"]  # what came of them is kept
    option = _option(result.facts["bucketing"])
    if option is not None and context.pilot.part("pad") is not None:
        boundaries = [r for r in rows if r["family"] in option["boundaries"]]
        try:
            result.facts["padding"] = padding.examine(context, boundaries)
        except faults.raised() as error:  # the pilot's: what was measured stays
            fault = faults.classify(error, context.pilot_path)
            result.faults.append(dataclasses.replace(fault, text=f"pad or unpad: {fault.text}"))
            result.facts["padding"] = {"raised": fault.text}
    _say(result, known)
    return result


def _equal(context: Context) -> bool:
    """Whether every one of several cases has the same frequency: nobody counted requests."""
    found = [c.frequency for c in context.pilot.operations()]
    return len(found) > 1 and len(set(found)) == 1


def _needed(rows: list[dict[str, Any]], share: float) -> int:
    return next(
        (i + 1 for i, r in enumerate(rows) if r["cumulative_share"] >= share - 1e-12), len(rows)
    )


def _say(result: StageResult, known: bool) -> None:
    facts = result.facts
    result.measured(
        f"{facts['families']} shape families; {facts['shapes_for_95_percent']} cover 95% of the "
        "traffic",
        "the pilot's requests, or batches of a training job, weighted by frequency: as "
        "representative as its list",
    )
    if facts["frequencies"] == "equal":
        result.open(
            "how often production sees each shape: all cases have one frequency",
            "give each Case the `frequency` that a log of requests shows",
        )
    if known:
        result.measured(
            f"{facts['compiles']} compilations, {facts['compile_seconds']:.2f} s, in "
            f"{facts['families_that_compile']} families",
            f"{facts['path']}; a fresh process, {facts['cache']}, most frequent family first",
        )
    else:
        result.open("compilations by shape", "the adapter cannot list compile events")
    _limit(result)
    bucketing = facts["bucketing"]
    if bucketing["why_not"]:
        result.open(f"bucketing: {bucketing['why_not']}", "")
    elif bucketing["options"]:
        _bucketing(result, bucketing)
        _padding(result)
    for family in facts["failed_families"]:
        result.findings.append(
            Finding(f"shape {family} fails on the device", "gap", family, gate="shape_failures")
        )


def _limit(result: StageResult) -> None:
    """Where the compiled path ends before the shapes do, as it would in production."""
    past, limit = result.facts["past_recompile_limit"], result.facts["recompile_limit"]
    if not past:
        return
    text = f"Dynamo reached {limit}: {len(past)} shapes that came then run eagerly where no graph "
    text += "of an earlier one takes them; their compilations and costs are those of that path"
    result.measured(text, "Dynamo's own warning, shapes most frequent first")
    change = (
        "bucket the shapes, compile with dynamic=True, or raise torch._dynamo.config."
        "recompile_limit in the workload and in the pilot"
    )
    text = f"{len(past)} shapes lie past Dynamo's recompile limit"
    result.findings.append(Finding(text, "gap", limit, change, "recompile_limit"))


def _option(bucketing: dict[str, Any]) -> dict[str, Any] | None:
    """The bucketing that is suggested, else the one that adds least, to say what it would cost."""
    options = bucketing["options"]
    cheapest = min(options, key=lambda o: o["extra_cost"]["value"], default=None)
    return bucketing["suggested"] or cheapest


def _bucketing(result: StageResult, bucketing: dict[str, Any]) -> None:
    families, suggested = result.facts["families"], bucketing["suggested"]
    option = _option(bucketing)
    assert option is not None
    text = (
        f"{option['buckets']} buckets instead of {families} shapes would save "
        f"{option['compiles_saved']} compilations ({option['compile_seconds_saved']:.2f} s); "
        f"execution added: {option['said']}"
    )
    if option["break_even"] is not None:
        text += f"; after {option['break_even']:,.0f} requests separate compilation is cheaper"
    how = (
        "times of the boundary shapes and of each shape itself, taken in turns, median of the "
        "differences and its 95% interval; compilations counted once"
    )
    if option["extra_cost"]["tellable"]:
        result.measured(text, how)
    else:
        result.open(text, how)
    over = f"over {bucketing['requests']:,.0f} requests"
    if suggested is not None:
        change = f"pad to {suggested['boundaries']}: less time in all {over}"
    elif bucketing["undecided"]:
        change = f"whether padding takes less time in all {over} cannot be told from these times"
    else:
        change = f"compile each shape: {over} padding takes longer than it saves"
    result.findings.append(
        Finding(f"{families} shapes compile separately", "note", suggestion=change, gate="shapes")
    )


def _padding(result: StageResult) -> None:
    facts = result.facts["padding"]
    if facts is None:
        result.open("whether padding leaves results unchanged", "the pilot declares no `pad`")
        return
    if "raised" in facts:
        result.open("whether padding leaves results unchanged", f"it raised {facts['raised']}")
        return
    if not facts["cases"]:
        result.open("whether padding leaves results unchanged", "no request would be padded")
        return
    result.measured(
        f"padded requests: {facts['cases'] - facts['failed']} of {facts['cases']} give the result "
        f"of the unpadded one, {facts['wasted_elements']:.0%} of the elements are padding",
        "on the device, with the pilot's `pad` and `unpad`",
    )
    text = f"added to the average request by padding as the pilot does it: {facts['said']}"
    how = "one case of each shape, padded and not in turns, `pad` and `unpad` included"
    if facts["cost"]["tellable"]:
        result.measured(text, how)
    else:
        result.open(text, how)
    for case in facts["changed"]:
        text = f"padding changes the result: {case['problem']}"
        result.findings.append(Finding(text, "gap", f"case {case['case']}", gate="padding"))
