"""What the benchmarks share: options, JSON lines, interleaved contenders, child processes.

Every benchmark prints one JSON object a line. Contenders run in turns in one process (or in child
processes in turns), so that a noisy machine is noisy for all of them; what counts are medians and
ratios. All get the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 9
QUICK_ROUNDS = 2
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def parse(description: str | None) -> argparse.Namespace:
    """Command line: ``--quick`` (as little as shows that it works) and ``--threads``.

    The thread count is set for PyTorch and, through the environment, for the plugin and for child
    processes: call this before the device is used.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    options.rounds = QUICK_ROUNDS if options.quick else ROUNDS
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["TORCH_NEURONX_CPU_THREADS"] = str(options.threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(options.threads)
    return options


def emit(benchmark: str, **facts: Any) -> None:
    """One JSON line."""
    print(json.dumps({"benchmark": benchmark, **facts}), flush=True)


def rounded(value: float, digits: int = 4) -> float:
    """A few significant digits: more would be noise."""
    return float(f"{value:.{digits}g}")


def interleave(
    contenders: dict[str, Callable[[], float]], rounds: int
) -> dict[str, tuple[float, list[float]]]:
    """Median and all results of each contender, which ran in turns, in changing order."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for i in range(rounds):
        for name in names if i % 2 == 0 else reversed(names):
            results[name].append(contenders[name]())
    return {name: (statistics.median(times), times) for name, times in results.items()}


def seconds_per_call(function: Callable[[], Any], calls: int, device: str) -> float:
    """Mean seconds of a call in a row of them, the device's work included."""
    import torch

    wait = torch.accelerator.synchronize if device != "cpu" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    wait()
    return (time.perf_counter() - start) / calls


def child(
    code: str, *arguments: str, timeout_s: float | None = None, **environ: str
) -> dict[str, Any]:
    """Runs Python code in a process of its own: the JSON object in its last line of output.

    What it wrote to standard error is added as ``stderr``.
    """
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the child process failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    result["stderr"] = done.stderr
    return result


def platform() -> dict[str, Any]:
    """What ran: torch, plugin and its version. Starts the device."""
    import torch

    properties = torch.neuron.get_device_properties(0)
    return {
        "torch": str(torch.__version__),
        "plugin": str(properties.plugin),
        "plugin_version": str(properties.plugin_version),
        "threads": torch.get_num_threads(),
    }
