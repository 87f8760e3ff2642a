"""A distributed job of the pilot: do ranks agree, and what follows the loss of one?"""

from __future__ import annotations

import socket
import tempfile
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult
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
            facts["survivors"] = _killed(context, world, folder)
            again = _answers(context, world, folder, resume=True)
        except ChildFailed as error:
            text = str(error).splitlines()[0]
            facts |= {"failed": 1, "error": str(error)}
            result.findings.append(Finding(f"distributed job: {text}", "gap"))
            result.open("recovery of the distributed job", text)
            return facts
    whole, resumed = [r["answer"] for r in ran], [r["answer"] for r in again]
    _communication(result, facts, ran)
    facts["ranks_agree"] = all(a == whole[0] for a in whole)
    facts["restart_agrees"] = resumed == whole
    facts["survivors_hang"] = facts["survivors"].count("hung")
    result.measured(
        f"{world} ranks {'agree' if facts['ranks_agree'] else 'DISAGREE'}; after the last rank was "
        f"killed the others: {', '.join(facts['survivors']) or 'none'}; a restart reaches "
        f"{'the same' if facts['restart_agrees'] else 'ANOTHER'} result",
        "what the pilot's `launch` returns on each rank",
    )
    if not facts["ranks_agree"]:
        result.findings.append(Finding(f"ranks return different results: {whole}"[:300], "gap"))
    if not facts["restart_agrees"]:
        result.findings.append(Finding("a restarted job reaches another result", "gap"))
    return facts


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
