"""Item 10: what the migration changed in the workload, apart from what running costs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import StageResult


def run(context: Context) -> StageResult:
    result = StageResult("effort", "Effort")
    pilot = context.pilot
    declared = pilot.part("effort")
    baseline = pilot.part("baseline")
    result.facts = {"declared": declared, "baseline": baseline, "lines_changed": None}
    if baseline is not None:
        change = lines_changed(context.pilot_path.parent, str(baseline))
        if "error" in change:
            result.open(f"lines changed since {baseline}", change["error"])
        else:
            result.facts |= change
            result.measured(
                f"{change['lines_changed']} lines changed in {len(change['files'])} files since "
                f"{baseline}",
                "git diff --numstat, added and removed; a one-time cost, not a running one",
            )
    if declared is not None:
        if result.facts["lines_changed"] is None:
            result.facts["lines_changed"] = declared.get("lines_changed")
        text = ", ".join(f"{k}: {v}" for k, v in declared.items())
        result.documented(f"declared effort: {text}", "the pilot's own statement")
    if baseline is None and declared is None:
        result.open("lines changed for the migration", "the pilot names no `baseline` or `effort`")
    return result


def lines_changed(folder: Path, baseline: str) -> dict[str, Any]:
    """Lines added and removed below ``folder`` since a git revision, or {"error": why not}."""
    command = ["git", "-C", str(folder), "diff", "--numstat", baseline, "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[0] if done.stderr else "git failed"}
    files, total = {}, 0
    for line in done.stdout.splitlines():
        added, removed, name = line.split("\t", 2)
        changed = sum(int(n) for n in (added, removed) if n.isdigit())  # "-": a binary file
        files[name] = changed
        total += changed
    return {"lines_changed": total, "files": files}
