"""The task of one rank of a distributed job that the pilot declares."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context


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
    """Runs the pilot's ``launch``; dies by SIGKILL when it reports step ``kill_after``."""

    def step_done(step: int) -> None:
        if step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    function = context.pilot.part("launch")
    answer = function(rank, world_size, Path(folder), resume, step_done)
    return dict(answer)
