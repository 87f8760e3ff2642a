"""The stages of a pilot, one module each: ``run(context) -> StageResult``."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stage:
    """``needs_device``: left open where the device is absent."""

    name: str
    title: str
    needs_device: bool = True

    def load(self) -> Callable[..., Any]:
        return importlib.import_module(f"neuron_readiness.stages.{self.name}").run


# In the order in which they run. The decision is made from the record, by `gates`.
STAGES: tuple[Stage, ...] = (
    Stage("environment", "Environment identity", needs_device=False),
    Stage("inventory", "Inventory of device-specific dependencies", needs_device=False),
    Stage("effort", "Effort", needs_device=False),
    Stage("correctness", "Correctness"),
    Stage("execution", "Execution path"),
    Stage("kernels", "Custom kernels"),
    Stage("shapes", "Shape ledger"),
    Stage("performance", "Performance"),
    Stage("profile", "Profile"),
    Stage("operations", "Operations"),
)
BY_NAME: dict[str, Stage] = {s.name: s for s in STAGES}
# Run every time: a stored result of another stage counts only for what these find.
ALWAYS = ("environment", "pilot")
