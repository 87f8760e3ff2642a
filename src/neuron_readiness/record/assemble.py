"""One record from the results of stages: what was learnt, what is open and why, the decision."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path
from typing import Any

from neuron_readiness import __version__
from neuron_readiness.exits import exit_code
from neuron_readiness.gates import table
from neuron_readiness.gates.decide import decide
from neuron_readiness.stages import STAGES

SCHEMA = "neuron-readiness/record"
SCHEMA_VERSION = 1
_LEFT_OUT = ("stage", "ledgers")  # the key says the one, Parquet holds the other


def assemble(
    results: dict[str, dict[str, Any]],
    *,
    pilot: Path,
    pilot_sha256: str,
    options: dict[str, Any],
    reasons: dict[str, str],
    faults: list[dict[str, Any]],
    gates: Path | None = None,
    previous: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The record. ``results``: stage to its result; ``reasons``: why a stage has none; ``faults``:
    beyond those of the results; ``previous``: the record that this one replaces."""
    items = {stage.name: _item(results.get(stage.name), stage, reasons) for stage in STAGES}
    found = [{**f, "stage": n} for n, item in items.items() for f in item["faults"]]
    found += [{**f, "stage": "pilot"} for f in results.get("pilot", {}).get("faults", [])]
    found += faults
    for fault in found:
        fault["reproduce"] = reproduce(pilot, options, fault.get("stage", ""))
    gate_list = table.load(gates)
    declared = results.get("pilot", {}).get("facts", {})
    changes = declared.get("gates") or {}
    name = declared.get("name") or pilot.stem
    known = {**items, "pilot": results.get("pilot", {})}
    subject, limits = claimed(name, options, items, declared)
    rules = table.changed(gate_list, changes)
    decision = decide(rules, known, found, subject, limits, ran=has_run(items))
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "name": name,
        "pilot": {"path": str(pilot), "sha256": pilot_sha256, **declared},
        "options": options,
        "decision": decision,
        "exit_code": exit_code(decision["verdict"], (f["kind"] for f in found)),
        "faults": found,
        "drift": drift(previous, items),
        "items": items,
    }


def claimed(
    name: str, options: dict[str, Any], items: dict[str, Any], declared: dict[str, Any]
) -> tuple[str, list[str]]:
    """What a claim is about, with the configuration that was evaluated; and what it leaves out."""
    environment = items["environment"]["facts"]
    configuration = environment.get("configuration", "")
    subject = f"{name} on {options['device']} against {options['reference']}"
    limits = [environment.get("stands_in", "")]
    if declared.get("simplified"):
        limits.append(f"the pilot is simplified: {declared['simplified']}")
    return f"{subject} ({configuration})" if configuration else subject, [x for x in limits if x]


def has_run(items: dict[str, dict[str, Any]]) -> bool:
    """Whether a request or a training step of the pilot came to its end in any stage."""
    facts = {name: item["facts"] for name, item in items.items()}
    told = facts["correctness"]
    shapes, recovery = facts["shapes"], facts["operations"].get("recovery")
    return bool(
        any(told.get(n) is not None for n in ("repeatable", "gradients", "trajectory"))
        or "operators" in facts["execution"]
        or shapes.get("families", 0) > len(shapes.get("failed_families", ()))
        or any("steady" in r for r in facts["performance"].get("runs", {}).values())
        or "shares" in facts["profile"]
        or (recovery and not recovery.get("error"))
        or facts["operations"].get("distributed")
    )


def reproduce(pilot: Path, options: dict[str, Any], stage: str) -> str:
    """The command that runs what went wrong once more, and nothing else."""
    known = {s.name for s in STAGES}
    parts = ["neuron-readiness run", shlex.quote(str(pilot))]
    parts += [f"--device {options['device']}", f"--reference {options['reference']}"]
    parts += [f"--only {stage} --again {stage}"] if stage in known else []
    return " ".join(parts)


def _item(result: dict[str, Any] | None, stage: Any, reasons: dict[str, str]) -> dict[str, Any]:
    if result is not None:
        return {k: v for k, v in result.items() if k not in _LEFT_OUT}
    why = reasons.get(stage.name, "not asked for in this run")
    return {
        "title": stage.title,
        "status": "open",
        "reason": why,
        "evidence": "open",
        "facts": {},
        "statements": [{"text": "nothing is known", "evidence": "open", "source": why}],
        "findings": [],
        "faults": [],
        "seconds": 0.0,
    }


def drift(previous: dict[str, Any] | None, items: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes of the environment since the record before, as name, before, after."""
    if previous is None:
        return []
    before = previous.get("items", {}).get("environment", {}).get("facts", {})
    after = items["environment"]["facts"]
    return changes_of(before, after) if before and after else []


def with_dropped(
    rows: list[dict[str, Any]], dropped: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Drift with what made stored results of stages invalid, and before it those stages."""
    if not dropped:
        return rows
    known = {r["name"] for r in rows}
    more = {c["name"]: c for changes in dropped.values() for c in changes if c["name"] not in known}
    names = ", ".join(dropped)
    first = {"name": "stored results", "before": names, "after": "dropped: made with what differs"}
    return [first, *more.values(), *rows]


def changes_of(before: Any, after: Any, name: str = "") -> list[dict[str, Any]]:
    """Leaves of two JSON values that differ; lists of packages by name."""
    if isinstance(before, dict) and isinstance(after, dict):
        rows = []
        for key in sorted({*before, *after}):
            path = f"{name}.{key}" if name else key
            rows += changes_of(before.get(key), after.get(key), path)
        return rows
    if name.endswith("packages") and isinstance(before, list) and isinstance(after, list):
        return changes_of(_versions(before), _versions(after), name)
    return [] if before == after else [{"name": name, "before": before, "after": after}]


def _versions(packages: list[str]) -> dict[str, str]:
    return {name: version for name, _, version in (p.partition("==") for p in packages)}
