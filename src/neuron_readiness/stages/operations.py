"""Item 9: does a job survive being killed, and do ranks agree?"""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, Side, StageResult
from neuron_readiness.recording import ranks
from neuron_readiness.run.child import ChildFailed

_PARTS = ("model", "optimizer", "rng", "host_rng")


def run(context: Context) -> StageResult:
    result = StageResult("operations", "Operations")
    pilot = context.pilot
    result.facts = {"recovery": None, "distributed": None}
    if pilot.trains and pilot.cases("train"):
        with tempfile.TemporaryDirectory(dir=context.out) as folder:
            result.facts["recovery"] = _recovery(result, context, Path(folder))
    else:
        result.measured("no training job to recover: the pilot has no `train_step`", "pilot")
    if pilot.part("launch") is not None:
        result.facts["distributed"] = ranks.examine(result, context)
    elif pilot.trains:
        result.open("distributed behaviour", "the pilot declares no `launch`")
    return result


def _recovery(result: StageResult, context: Context, folder: Path) -> dict[str, Any]:
    """Three jobs: uninterrupted; saved and killed; resumed."""
    steps = max(4, context.options.train_steps)
    saved = steps // 2
    journals = {n: folder / f"{n}.jsonl" for n in ("whole", "killed", "resumed")}
    common = {"steps": steps, "checkpoint": str(folder / "checkpoint")}
    facts: dict[str, Any] = {"steps": steps, "saved_after": saved, "failed": 0}
    try:
        context.child("train", {**common, "journal": str(journals["whole"])}, {})
        facts["killed_by_signal"] = _killed(
            context,
            {
                **common,
                "journal": str(journals["killed"]),
                "save_after": saved,
                "kill_after": saved + 1,
            },
        )
        resumed = {**common, "journal": str(journals["resumed"]), "resume": True}
        context.child("train", resumed, {})
    except ChildFailed as error:
        side: Side = "infrastructure" if (error.returncode or 0) < 0 else "workload"
        facts |= {"failed": 1, "error": str(error), "side": side}
        text = f"recovery: {error}".splitlines()[0]
        result.findings.append(Finding(text, "gap", gate="recovery_works"))
        kind = "hung" if error.returncode is None else "pilot-raised"
        result.faults.append(Fault(kind, str(error).splitlines()[0], side, str(error)))
        return facts
    facts |= judge({n: _read(p) for n, p in journals.items()}, saved, steps)
    _say(result, facts)
    return facts


def _killed(context: Context, arguments: dict[str, Any]) -> int:
    """Runs the job that kills itself after its checkpoint; the signal that it died of.

    Raises:
        ChildFailed: it ended in another way, or before its checkpoint was there.
    """
    try:
        context.child("train", arguments, {})
    except ChildFailed as error:
        saved = {e["event"] for e in _read(Path(arguments["journal"]))} >= {"saved"}
        if error.returncode == -signal.SIGKILL and saved:
            return signal.SIGKILL
        raise
    raise ChildFailed("train ended before it could be killed", 0)


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def judge(journals: dict[str, list[dict[str, Any]]], saved: int, steps: int) -> dict[str, Any]:
    """What was restored, whether the trajectory is the same, and which samples were seen twice or
    never. Steps between the checkpoint and the kill are lost work, not repeated samples."""
    events = {n: {e["event"]: e for e in j if e["event"] != "step"} for n, j in journals.items()}
    whole, killed, resumed = (
        {e["sample"]: e["loss"] for e in journals[n] if e["event"] == "step"}
        for n in ("whole", "killed", "resumed")
    )
    at_save, at_load = events["killed"]["saved"], events["resumed"]["loaded"]
    restored = {part: at_save[part] == at_load[part] for part in _PARTS}
    restored["position"] = at_load["position"] == saved
    before = [s for s in killed if s < saved]
    seen = before + [e["sample"] for e in journals["resumed"] if e["event"] == "step"]
    gaps = [abs(resumed[s] - whole[s]) for s in resumed if s in whole and s >= saved]
    return {
        "restored": restored,
        "not_restored": [part for part, ok in restored.items() if not ok],
        "same_trajectory": bool(gaps) and max(gaps) == 0.0,
        "largest_loss_difference": max(gaps, default=None),
        "same_final_model": events["whole"]["ended"]["model"]
        == events["resumed"]["ended"]["model"],
        "repeated_samples": len(seen) - len(set(seen)),
        "skipped_samples": len(set(range(steps)) - set(seen)),
        "lost_steps": len(killed) - len(before),
    }


def _say(result: StageResult, facts: dict[str, Any]) -> None:
    how = (
        f"a process killed by SIGKILL one step after the checkpoint at step {facts['saved_after']}"
    )
    kept = ", ".join(f"{n} {'yes' if ok else 'NO'}" for n, ok in facts["restored"].items())
    result.measured(f"restored: {kept}", how)
    same = "the same" if facts["same_trajectory"] else "another trajectory"
    result.measured(
        f"resumed losses: {same} (largest difference {facts['largest_loss_difference']}); "
        f"{facts['repeated_samples']} samples repeated, {facts['skipped_samples']} skipped, "
        f"{facts['lost_steps']} steps of work lost",
        "against an uninterrupted job in a process of its own",
    )
    for part in facts["not_restored"]:
        name = {"rng": "the random state", "host_rng": "Python's or NumPy's random state"}
        result.findings.append(
            Finding(
                f"the checkpoint does not restore {name.get(part, part)}",
                "gap",
                suggestion="save and load it beside the model",
                gate="recovery",
            )
        )
