"""What a stage gets: the pilot, the devices, the options, and what earlier stages found."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

from neuron_readiness.adapters import Adapter, adapter_for
from neuron_readiness.pilot import Pilot, load
from neuron_readiness.recording.lines import LineRecorder
from neuron_readiness.run.child import Child
from neuron_readiness.workload import Workload, pair


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a run; all of them are in the record and in the fingerprint of a stage."""

    device: str = "neuron"
    reference: str = "cpu"
    repeats: int = 30  # steady requests timed, over the cases
    train_steps: int = 8
    child_timeout_s: float = 600.0
    allow_network: bool = False
    max_layers: int = 400  # layers compared one by one


class Context:
    """Everything a stage reads. The workload on both devices is built at first use and shared."""

    def __init__(self, pilot_path: Path, options: Options, out: Path) -> None:
        self.pilot_path = pilot_path.resolve()
        self.options = options
        self.out = out
        self.device: Adapter = adapter_for(options.device)
        self.reference: Adapter = adapter_for(options.reference)
        self.earlier: dict[str, dict[str, Any]] = {}  # stage -> facts
        self.lines = LineRecorder(self.pilot_path.parent)  # what of the workload's files runs
        self.child_forks: list[str] = []  # lines at which a stage's fresh processes forked

    @cached_property
    def pilot(self) -> Pilot:
        return load(self.pilot_path)

    @cached_property
    def pair(self) -> tuple[Workload, Workload]:
        """(on the device, on the reference), equal weights."""
        return pair(self.pilot, self.device, self.reference)

    def start(self, task: str, arguments: dict[str, Any], environ: dict[str, str]) -> Child:
        """Starts a task of ``run/tasks.py`` in a fresh process."""
        request = {
            "pilot": str(self.pilot_path),
            "options": dataclasses.asdict(self.options),
            "out": str(self.out),
            "task": task,
            "arguments": arguments,
        }
        return Child(request, environ, self.out, self.child_forks)

    def child(self, task: str, arguments: dict[str, Any], environ: dict[str, str]) -> Any:
        """Runs a task in a fresh process and returns its JSON answer.

        Raises:
            ChildFailed: it raised, was killed, or took longer than ``child_timeout_s``.
        """
        return self.start(task, arguments, environ).answer(self.options.child_timeout_s)
