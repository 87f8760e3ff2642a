"""The process in which stages run: ``python -m neuron_readiness.run.worker REQUEST``.

Tells its supervisor, over a pipe, which stage it begins and ends; results lie in files, so that a
worker that hangs or dies loses only the stage it was in.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from neuron_readiness import pilot, stages
from neuron_readiness.context import Context, Options
from neuron_readiness.evidence import Fault, StageResult
from neuron_readiness.inventory import sources
from neuron_readiness.record.assemble import changes_of
from neuron_readiness.run import faults, guard, lifeline
from neuron_readiness.run.store import Store, fingerprint


def main(argv: list[str]) -> int:
    lifeline.end_with_parent()
    request = json.loads(argv[0])
    options = Options(**request["options"])
    fd = request["event_fd"]
    guard.install(options.allow_network, fd)
    if hasattr(signal, "SIGUSR1"):  # the supervisor asks where a hanging stage is
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    context = Context(Path(request["pilot"]), options, Path(request["out"]))
    run_stages(context, request["stages"], request["force"], lambda e: _send(fd, e))
    return 0


# Not an item of the record: what the pilot is, or why it cannot be loaded.
_PILOT = stages.Stage("pilot", "The pilot", needs=())


def _send(fd: int, event: dict[str, Any]) -> None:
    os.write(fd, (json.dumps(event) + "\n").encode())


def run_stages(context: Context, names: list[str], force: list[str], tell: Any) -> None:
    """Runs the named stages in order, or takes a stored result that is still valid.

    The environment and the pilot come first, always: a result is valid for one environment, and
    without a pilot nothing else can run. A stage that raises keeps a record of that, and the next
    one runs.
    """
    store = Store(context.out)
    key = ""
    basis: dict[str, Any] = {}
    for stage in (*stages.STAGES[:1], _PILOT, *stages.STAGES[1:]):
        wanted = stage.name in names or stage.name in stages.ALWAYS
        stored = None
        if stage.name not in stages.ALWAYS:
            before = store.basis(stage.name, key)
            if before is not None:
                tell({"event": "dropped", "of": stage.name, "changes": changes_of(before, basis)})
            usable = key if stage.name not in force else "-"
            stored = store.load(stage.name, usable)
        if stored is not None and stored["status"] == "done" and not stored["faults"]:
            context.earlier[stage.name] = stored["facts"]
            if wanted:
                tell({"event": "kept", "stage": stage.name})
            continue
        if not wanted:
            continue
        if stages.absent(stage, context.earlier.get("environment", {})):
            continue  # the record says that it is open, and why
        tell({"event": "begin", "stage": stage.name})
        store.forget(stage.name)  # what a crash leaves must not be an older result
        context.child_forks.clear()
        result = attempt(context, stage)
        guard.end_copies()
        _say_refused(result)
        where = guard.forked() or next(iter(context.child_forks), "")
        if where:
            text = f"the pilot forked in stage {stage.name} ({where})"
            result.faults.append(Fault("forked", text, "workload"))
        context.earlier[stage.name] = result.facts
        store.save(stage.name, key, result.to_json(), basis)
        forked = bool(where)
        end = {"event": "end", "stage": stage.name, "status": result.status, "forked": forked}
        tell(end)
        if stage.name == "pilot":
            if result.status != "done":
                return
            basis = stage_basis(context, context.earlier["environment"])
            key = fingerprint(basis)
            tell({"event": "key", "key": key})


def _say_refused(result: StageResult) -> None:
    """A pilot that goes on without the network that it asked for has run without what it gives."""
    hosts = guard.refused()
    if not hosts or any(f.kind == "needs-network" for f in result.faults):
        return
    named = ", ".join(hosts[:4])
    result.open(
        f"what the pilot does with an answer of {named}",
        "it was refused the network and went on; bring the data along, or `--allow-network`",
    )


def attempt(context: Context, stage: stages.Stage) -> StageResult:
    """Runs one stage; an exception becomes a fault of its result."""
    start = time.perf_counter()
    try:
        result: StageResult = stage.load()(context)
    except faults.raised() as error:
        result = StageResult(stage.name, stage.title, status="failed")
        result.faults.append(fault := faults.classify(error, context.pilot_path))
        result.open(f"the stage raised: {fault.text}", f"fault of the {fault.side}")
    result.seconds = time.perf_counter() - start
    return result


def stage_basis(context: Context, environment: dict[str, Any]) -> dict[str, Any]:
    """What a stored result depends on: the tool, the workload's files, options, environment."""
    files = sources.of_workload(context.pilot_path, context.pilot.setting("code", []))
    return {
        "tool sources": tool_digest(),
        "workload": {str(f): pilot.digest(f) for f in files},
        "options": dataclasses.asdict(context.options),
        "packages": environment.get("packages"),
        "device": environment.get("device"),
        "variables": environment.get("variables"),
    }


def tool_digest() -> str:
    """A hash of this package's sources: a stage that was changed is run again."""
    package = Path(stages.__file__).parent.parent
    return fingerprint([pilot.digest(p) for p in sorted(package.rglob("*.py"))])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # all is written: a thread that the pilot left running must not hold this up
