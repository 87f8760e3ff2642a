"""What the pilot declares. Not an item of the record: its facts stand beside the pilot's hash."""

from __future__ import annotations

from neuron_readiness.context import Context
from neuron_readiness.evidence import StageResult
from neuron_readiness.gates import table
from neuron_readiness.pilot import PilotError


def run(context: Context) -> StageResult:
    result = StageResult("pilot", "The pilot")
    with context.lines:  # what runs when the file is imported
        pilot = context.pilot
    pilot.refuse_misspelt()
    try:
        known = table.load()
        names = {g.name for g in known}
        # A gate of a table of one's own is known only where the record is put together.
        changes = {n: e for n, e in pilot.setting("gates", {}).items() if n in names}
        table.changed(known, changes)
    except table.GateError as error:
        raise PilotError(f"`gates`: {error}") from error
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
