"""``neuron-readiness run``: stages, then a record, ledgers and reports, whatever happened."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits, pilot
from neuron_readiness.evidence import Fault, jsonable
from neuron_readiness.gates import table
from neuron_readiness.record import ledgers, read
from neuron_readiness.record.assemble import assemble, with_dropped
from neuron_readiness.report import render
from neuron_readiness.run import faults, store
from neuron_readiness.run.progress import Progress
from neuron_readiness.run.supervisor import Limits, Outcome, supervise
from neuron_readiness.stages import ALWAYS, STAGES, absent


@dataclasses.dataclass
class Request:
    """What the command line asks for."""

    pilot: Path
    out: Path
    options: dict[str, Any]
    only: list[str]
    force: list[str]
    gates: Path | None
    limits: Limits
    quiet: bool = False


def run(request: Request) -> dict[str, Any]:
    """Runs the stages and writes the folder; the record.

    Raises:
        NewerSchema: the folder holds a record of a later version, which is left untouched.
    """
    place = store.Store(request.out)
    previous = _previous(request.out)
    outcome = Outcome()
    try:
        place.prepare()
        names = request.only or [s.name for s in STAGES]
        with Progress(len({"environment", "pilot", *names}), quiet=request.quiet) as bar:
            outcome = supervise(
                request.pilot, request.options, place, names, request.force, request.limits, bar
            )
    except OSError as error:
        if not faults.is_disk_full(error):
            raise
        outcome.general.append(Fault("disk-full", str(error), "infrastructure"))
    return _finish(request, place, outcome, previous)


def _previous(out: Path) -> dict[str, Any] | None:
    if not (out / "record.json").exists():
        return None
    try:
        return read.read(out)
    except read.NewerSchema:
        raise
    except read.RecordError:
        return None  # damaged: it is replaced


def _finish(
    request: Request, place: store.Store, outcome: Outcome, previous: dict[str, Any] | None
) -> dict[str, Any]:
    results = {}
    for name in ("pilot", *(s.name for s in STAGES)):
        # A result of another pilot, another environment or other options is no evidence here.
        if name in ALWAYS:
            found = place.load(name) if name in outcome.ended else None
        else:
            found = place.load(name, outcome.key) if outcome.key else None
        if found is not None and name not in outcome.lost:
            results[name] = found
    found_faults = [*outcome.lost.values(), *outcome.forked.values(), *outcome.general]
    record = build(request, results, outcome, found_faults, previous)
    try:
        _write(request.out, record, results)
    except OSError as error:
        if not faults.is_disk_full(error):
            raise
        record = _full_disk(request, place, results, outcome, previous, error)
    place.release()
    return record


def build(
    request: Request,
    results: dict[str, Any],
    outcome: Outcome,
    found: list[Fault],
    previous: dict[str, Any] | None,
) -> dict[str, Any]:
    environment = results.get("environment", {}).get("facts", {})
    lost = {id(f): n for n, f in [*outcome.lost.items(), *outcome.forked.items()]}
    found = list(found)
    missing = {absent(stage, environment) for stage in STAGES} - {""}
    found += [Fault("device-absent", text, "infrastructure") for text in sorted(missing)]
    stages = [lost.get(id(f), "") for f in found]
    try:
        table.changed(table.load(request.gates), _declared(results).get("gates") or {})
    except table.GateError as error:
        # The stages have run: judged by the gates that are known, and told.
        found.append(Fault("pilot-raised", f"the pilot's `gates`: {error}", "workload"))
        stages.append("")
        results = {**results, "pilot": {**results["pilot"]}}
        results["pilot"]["facts"] = {**_declared(results), "gates": {}}
    record = assemble(
        results,
        pilot=request.pilot,
        pilot_sha256=pilot.digest(request.pilot),
        options=request.options,
        reasons=_reasons(request, results, outcome, environment),
        faults=[{**dataclasses.asdict(f), "stage": n} for f, n in zip(found, stages, strict=True)],
        gates=request.gates,
        previous=previous,
    )
    record["drift"] = with_dropped(record["drift"], outcome.dropped)
    if outcome.interrupted:
        record["exit_code"] = exits.INTERRUPTED
    strict: dict[str, Any] = jsonable(record)
    return strict


def _declared(results: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = results.get("pilot", {}).get("facts", {})
    return facts


def _reasons(
    request: Request,
    results: dict[str, dict[str, Any]],
    outcome: Outcome,
    environment: dict[str, Any],
) -> dict[str, str]:
    """Why each stage without a result has none."""
    broken = results.get("pilot", {}).get("faults") or [
        dataclasses.asdict(f) for n, f in outcome.lost.items() if n in ("pilot", "environment", "?")
    ]
    reasons = {}
    for stage in STAGES:
        if stage.name in outcome.lost:
            reasons[stage.name] = outcome.lost[stage.name].text
        elif broken:
            reasons[stage.name] = f"nothing could run: {broken[0]['text']}"
        elif why := absent(stage, environment):
            reasons[stage.name] = f"the {why}"
        elif outcome.interrupted:
            reasons[stage.name] = "the run was interrupted"
        elif request.only and stage.name not in request.only:
            reasons[stage.name] = "not asked for (--only), and no valid result is stored"
        elif outcome.general:
            reasons[stage.name] = outcome.general[0].text
    return reasons


def _write(out: Path, record: dict[str, Any], results: dict[str, Any]) -> None:
    """The record first: it is what must survive."""
    out.mkdir(parents=True, exist_ok=True)  # a pilot may have removed it
    read.validate(record)
    store.write(out / "record.json", record)
    store.write(out / "report.md", render.markdown(record))
    store.write(out / "report.html", render.html(record))
    ledgers.write(out, results)


def _full_disk(
    request: Request,
    place: store.Store,
    results: dict[str, Any],
    outcome: Outcome,
    previous: dict[str, Any] | None,
    error: OSError,
) -> dict[str, Any]:
    """Gives up the kept room and the ledgers, and writes record and reports again; if even that
    fails, the record goes to standard output."""
    fault = Fault("disk-full", f"writing the record: {error}", "infrastructure")
    outcome.general.append(fault)
    record = build(request, results, outcome, [*outcome.lost.values(), *outcome.general], previous)
    place.release()
    shutil.rmtree(request.out / "ledgers", ignore_errors=True)
    try:
        store.write(request.out / "record.json", record)
        store.write(request.out / "report.md", render.markdown(record))
    except OSError:
        print(json.dumps(record), file=sys.stdout)
    return record
