"""The task of one rank of a distributed job that the pilot declares."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context

# Backends of torch.distributed, as they name their work to PyTorch's profiler ("gloo:all_reduce").
_BACKENDS = ("gloo", "nccl", "neuron", "xccl", "ucc", "mpi", "hccl")


def launch(
    context: Context,
    started: float,
    *,
    rank: int,
    world_size: int,
    folder: str,
    resume: bool,
    kill_after: int | None,
) -> dict[str, Any]:
    """Runs the pilot's ``launch``; dies by SIGKILL when it reports step ``kill_after``.

    Returns what the pilot returns as ``answer``, the ``seconds`` of the call, and the seconds in
    which a collective was under way as ``communication_s``, None if the backend names none.
    """
    import torch

    def step_done(step: int) -> None:
        if step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    function = context.pilot.part("launch")
    begin = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        answer = function(rank, world_size, Path(folder), resume, step_done)
    seconds = time.perf_counter() - begin
    spans = [
        (e.time_range.start, e.time_range.end)
        for e in profile.events() or []
        if e.name.split(":")[0] in _BACKENDS and ":" in e.name
    ]
    return {
        "answer": dict(answer),
        "seconds": seconds,
        "communication_s": 1e-6 * covered(spans) if spans else None,
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length that intervals cover together: collectives may be under way at the same time."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
