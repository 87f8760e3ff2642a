"""A distributed job of the pilot: do ranks agree, and what follows the loss of one?"""

from __future__ import annotations

import dataclasses
import socket
import tempfile
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult
from neuron_readiness.run import faults
from neuron_readiness.run.child import ChildFailed

_KILL_AFTER = 2
# How long surviving ranks may take to notice; they are killed then and the record says so.
_NOTICE_S = 60.0


def examine(result: StageResult, context: Context) -> dict[str, Any]:
    world = int(context.pilot.setting("world_size", 2))
    facts: dict[str, Any] = {"world_size": world, "failed": 0}
    with (
        tempfile.TemporaryDirectory(dir=context.out) as whole_folder,
        tempfile.TemporaryDirectory(dir=context.out) as folder,
    ):
        try:
            ran = _answers(context, world, whole_folder, resume=False)
        except ChildFailed as error:
            _failed(result, context, facts, error, "the distributed job", "ranks")
            return facts
        whole = [r["answer"] for r in ran]
        _communication(result, facts, ran)
        facts["ranks_agree"] = all(a == whole[0] for a in whole)
        result.measured(
            f"{world} ranks {'agree' if facts['ranks_agree'] else 'DISAGREE'}",
            "what the pilot's `launch` returns on each rank",
        )
        if not facts["ranks_agree"]:
            text = f"ranks return different results: {whole}"[:300]
            result.findings.append(Finding(text, "gap", gate="ranks"))
        try:
            facts["survivors"] = _killed(context, world, folder)
            facts["survivors_hang"] = facts["survivors"].count("hung")
            again = [r["answer"] for r in _answers(context, world, folder, resume=True)]
        except ChildFailed as error:
            facts["restart_agrees"] = False
            _failed(result, context, facts, error, "the restarted distributed job", "restart")
            return facts
    facts["restart_agrees"] = again == whole
    result.measured(
        "after the last rank was killed the others: "
        f"{', '.join(facts['survivors']) or 'none'}; a restart reaches "
        f"{'the same' if facts['restart_agrees'] else 'ANOTHER'} result",
        "what the pilot's `launch` returns on each rank",
    )
    if not facts["restart_agrees"]:
        text = "a restarted job reaches another result"
        result.findings.append(Finding(text, "gap", gate="restart"))
    return facts


def _failed(
    result: StageResult,
    context: Context,
    facts: dict[str, Any],
    error: ChildFailed,
    what: str,
    gate: str,
) -> None:
    """Whose fault it is, and what it leaves open; what was learnt before stays."""
    fault = faults.of_child(error, context.pilot_path)
    text = f"{what}: {fault.text}"
    facts |= {"failed": 1, "error": str(error), "side": fault.side}
    result.faults.append(dataclasses.replace(fault, text=text))
    result.findings.append(Finding(text, "gap", gate=gate))
    result.open(f"recovery of {what}", fault.text)


def _communication(result: StageResult, facts: dict[str, Any], ran: list[dict[str, Any]]) -> None:
    """The share of the job in which a collective was under way, on the rank where it is largest."""
    known = [r for r in ran if r["communication_s"] is not None]
    if not known:
        result.open("time in collectives", "the backend names no work to PyTorch's profiler")
        return
    facts["communication_share"] = max(r["communication_s"] / r["seconds"] for r in known)
    result.measured(
        f"a collective is under way for {facts['communication_share']:.0%} of the job",
        "PyTorch's profiler, from each collective's start to its completion, waiting for other "
        "ranks included; the pilot's own set-up is part of the job",
    )


def _start(
    context: Context, world: int, folder: str, resume: bool, killed: int | None
) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(world):
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        arguments = {
            "rank": rank,
            "world_size": world,
            "folder": folder,
            "resume": resume,
            "kill_after": _KILL_AFTER if rank == killed else None,
        }
        children.append(context.start("launch", arguments, environ))
    return children


def _answers(context: Context, world: int, folder: str, resume: bool) -> list[Any]:
    children = _start(context, world, folder, resume, None)
    try:
        return [c.answer(context.options.child_timeout_s) for c in children]
    finally:
        for child in children:  # one that failed leaves no other behind
            child.close()


def _killed(context: Context, world: int, folder: str) -> list[str]:
    """Kills the last rank in its step; how each other rank ended."""
    children = _start(context, world, folder, False, world - 1)
    children[-1].wait(context.options.child_timeout_s)
    ends = []
    for child in children[:-1]:
        code = child.wait(_NOTICE_S)
        ends.append("hung" if code is None else "ended" if code == 0 else "noticed")
    for child in children:
        child.close()
    return ends
