"""What the pilot declares. Not an item of the record: its facts stand beside the pilot's hash."""

from __future__ import annotations

from neuron_readiness.context import Context
from neuron_readiness.evidence import StageResult


def run(context: Context) -> StageResult:
    result = StageResult("pilot", "The pilot")
    pilot = context.pilot
    result.facts = {
        "name": pilot.name,
        "trains": pilot.trains,
        "launches": pilot.part("launch") is not None,
        "parts": pilot.provided,
        "simplified": pilot.part("simplified"),
        "gates": pilot.setting("gates", {}),
        "requests": len(pilot.cases("requests")),
        "hard": len(pilot.cases("hard")),
        "train": len(pilot.cases("train")),
    }
    return result
