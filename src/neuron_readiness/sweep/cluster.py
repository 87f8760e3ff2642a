"""The same sweep over many machines with Ray: actors, each with a worker process of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from neuron_readiness.sweep.pool import Probe, Task

_TRIES = 2  # an actor may be lost with its machine, which says nothing of the architecture


class NoRay(RuntimeError):
    """Ray is not installed."""


def run(
    tasks: list[Task],
    device: str,
    workers: int,
    timeout_s: float,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """As ``pool.run``, with ``workers`` actors on the cluster that Ray is connected to, spread over
    its machines; each needs this package. An actor that is lost is replaced, and its architecture
    tried once more; one that is lost again is a row that says so.

    Raises:
        NoRay: the package ``ray`` cannot be imported.
    """
    try:
        import ray
    except ImportError as error:
        raise NoRay(
            f"--ray needs the package ray ({error}); pip install 'torchneuron[cluster]'"
        ) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    kind = ray.remote(Probe).options(scheduling_strategy="SPREAD")

    def start() -> Any:
        return kind.remote(device, timeout_s, {"OMP_NUM_THREADS": "1"})

    idle = [start() for _ in range(min(workers, len(tasks)))]
    running: dict[Any, tuple[Any, Task, int]] = {}
    left = deque((task, 1) for task in tasks)
    try:
        while left or running:
            while left and idle:
                (task, count), probe = left.popleft(), idle.pop()
                running[probe.row.remote(task)] = (probe, task, count)
            [finished], _ = ray.wait(list(running), num_returns=1)
            probe, task, count = running.pop(finished)
            try:
                row = ray.get(finished)
            except ray.exceptions.RayError as error:
                ray.kill(probe)  # what is left of it
                probe = start()
                if count < _TRIES:
                    left.append((task, count + 1))
                else:
                    done(_lost(task, error))
            else:
                done(row)
            idle.append(probe)
        ray.get([probe.close.remote() for probe in idle])
    finally:
        for probe in (*idle, *(p for p, _, _ in running.values())):
            ray.kill(probe)


def _lost(task: Task, error: BaseException) -> dict[str, Any]:
    source, name, family = task
    lines = str(error).strip().splitlines() or [""]
    why = f"{_TRIES} actors were lost, the last by {type(error).__name__}: {lines[0]}"
    return {
        "source": source,
        "name": name,
        "family": family,
        "loads": None,  # not known: it is the cluster that failed
        "outcome": "lost",
        "errors": {"cluster": why[:600]},
        "seconds": 0.0,
    }
