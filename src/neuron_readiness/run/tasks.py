"""Tasks that need a fresh process: ``python -m neuron_readiness.run.tasks REQUEST``.

A task gets the context and its arguments, and returns JSON.
"""

from __future__ import annotations

import time

_STARTED = time.perf_counter()  # before torch is imported: set-up time includes it

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


def main(argv: list[str]) -> int:
    from neuron_readiness.run import lifeline

    lifeline.end_with_parent()
    request = json.loads(argv[0])
    from neuron_readiness.context import Context, Options
    from neuron_readiness.evidence import jsonable
    from neuron_readiness.run import faults, guard

    options = Options(**request["options"])
    guard.install(options.allow_network, os.open(request["events"], os.O_WRONLY | os.O_APPEND))
    context = Context(Path(request["pilot"]), options, Path(request["out"]))
    try:
        answer = task(request["task"])(context, _STARTED, **request["arguments"])
    except faults.raised():
        traceback.print_exc()  # of SystemExit too, whose status might say that all went well
        return 1
    if guard.is_original():
        Path(request["answer"]).write_text(json.dumps(jsonable(answer)))
    return 0


def task(name: str) -> Callable[..., Any]:
    """The function of a task by its name."""
    from neuron_readiness.run import launching, serving, training

    tasks: dict[str, Callable[..., Any]] = {
        "shape_ledger": serving.shape_ledger,
        "serve": serving.serve,
        "train": training.train,
        "launch": launching.launch,
    }
    return tasks[name]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # all is written: a thread that the pilot left running must not hold this up
