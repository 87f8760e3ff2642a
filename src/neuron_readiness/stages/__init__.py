"""The stages of a pilot, one module each: ``run(context) -> StageResult``."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stage:
    """Left open where a side that it needs is absent."""

    name: str
    title: str
    needs: tuple[str, ...] = ("device", "reference")

    def load(self) -> Callable[..., Any]:
        return importlib.import_module(f"neuron_readiness.stages.{self.name}").run


# In the order in which they run. The decision is made from the record, by `gates`.
STAGES: tuple[Stage, ...] = (
    Stage("environment", "Environment identity", needs=()),
    Stage("inventory", "Inventory of device-specific dependencies", needs=("reference",)),
    Stage("effort", "Effort", needs=()),
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


def absent(stage: Stage, environment: dict[str, Any]) -> str:
    """Why a stage cannot run on this machine, in words; "" if it can. ``environment``: the facts of
    that stage."""
    for side in stage.needs:
        facts = environment.get(side, {})
        if facts.get("absent"):
            return f"{side} {facts.get('name')!r} is absent: {facts['absent']}"
    return ""
