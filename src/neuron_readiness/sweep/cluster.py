"""The same sweep over many machines with Ray: actors, each with a worker process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuron_readiness.sweep.pool import Probe, Task


class NoRay(RuntimeError):
    """Ray is not installed."""


def run(
    tasks: list[Task],
    device: str,
    workers: int,
    timeout_s: float,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """As ``pool.run``, with ``workers`` actors on the cluster that Ray is connected to.

    Raises:
        NoRay: the package ``ray`` cannot be imported.
    """
    try:
        import ray
    except ImportError as error:
        raise NoRay(f"--ray needs the package ray: {error}") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    actor = ray.remote(Probe)
    idle = [actor.remote(device, timeout_s, {"OMP_NUM_THREADS": "1"}) for _ in range(workers)]
    running: dict[Any, Any] = {}
    left = list(reversed(tasks))
    while left or running:
        while left and idle:
            probe = idle.pop()
            running[probe.row.remote(left.pop())] = probe
        [finished], _ = ray.wait(list(running), num_returns=1)
        idle.append(running.pop(finished))
        done(ray.get(finished))
    ray.get([probe.close.remote() for probe in idle])
