"""From a record's items to a decision whose claim is as narrow as the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuron_readiness.gates.table import OPERATORS, Gate

_ABSENT = object()
TITLES = {
    "proceed": "Proceed for the tested workload",
    "continue": "Continue on named gaps",
    "keep": "Keep the existing path",
    "not-run": "The pilot did not run: nothing is claimed",
}
_UNJUDGED = "no requirement was judged: every gate only reports, is off or does not apply"


def evaluate(gate: Gate, items: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One gate's row: ``outcome`` is passed, failed, open or not-applicable."""
    row = {
        "gate": gate.name,
        "claim": gate.claim,
        "level": gate.level,
        "measure": gate.measure,
        "rule": f"{gate.op} {gate.limit}",
        "value": None,
        "item": gate.measure.split(".")[0],
    }
    if gate.level == "off":
        return {**row, "outcome": "not-applicable"}
    if gate.when and not _truthy(_lookup(items, gate.when)):
        # The item ran and says that this does not apply; an item that did not run is open.
        ran = items.get(gate.when.split(".")[0], {}).get("status") == "done"
        return {**row, "outcome": "not-applicable" if ran else "open"}
    found = _lookup(items, gate.measure)
    if found is _ABSENT or (found is None and gate.limit != "none"):
        return {**row, "outcome": "open"}
    value = _value(found)
    row["value"] = value
    try:
        passed = OPERATORS[gate.op](value, gate.limit)
    except TypeError:
        return {**row, "outcome": "open"}
    return {**row, "outcome": "passed" if passed else "failed"}


def _lookup(items: dict[str, dict[str, Any]], path: str) -> Any:
    name, *rest = path.split(".")
    value: Any = items.get(name, {}).get("facts", _ABSENT)
    for part in rest:
        if not isinstance(value, dict) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _value(found: Any) -> Any:
    if isinstance(found, (list, dict)):
        return len(found)
    return "none" if found is None else found


def _truthy(value: Any) -> bool:
    return value is not _ABSENT and bool(value)


def decide(
    gates: list[Gate],
    items: dict[str, dict[str, Any]],
    faults: list[dict[str, Any]],
    subject: str,
    limits: Sequence[str] = (),
    *,
    ran: bool = True,
) -> dict[str, Any]:
    """The decision with its reasons, most important first, and the largest gap. Without a gate that
    decides there is nothing to proceed on.

    ``subject``: the workload, device and configuration, in words, for the claim; ``limits``: what
    the evidence leaves out whatever the gates say; ``ran``: whether the pilot gave any result: a
    fault before that leaves nothing to name gaps of.
    """
    rows = [evaluate(g, items) for g in gates]
    broken = [r for r in rows if r["outcome"] == "failed" and r["level"] == "require"]
    by_name = {g.name: g for g in gates}
    gaps = [
        r
        for r in rows
        if (r["outcome"] == "failed" and r["level"] == "expect")
        or (
            r["outcome"] == "open"
            and r["level"] in ("require", "expect")
            and by_name[r["gate"]].open == "gap"
        )
    ]
    passed = [r for r in rows if r["outcome"] == "passed" and r["level"] != "report"]
    verdict = "keep" if broken else "continue" if gaps or faults or not passed else "proceed"
    reasons = [_reason(r, items, "requirement not met") for r in broken]
    reasons += [{"text": f["text"], "kind": "fault", "gate": ""} for f in faults]
    reasons += [_reason(r, items, "gap") for r in gaps if r["outcome"] == "failed"]
    reasons += [_reason(r, items, "open") for r in gaps if r["outcome"] == "open"]
    if not (passed or broken or gaps):
        reasons.append({"text": _UNJUDGED, "kind": "open", "gate": ""})
    if verdict == "proceed":
        reasons = [{"text": r["claim"], "kind": "met", "gate": r["gate"]} for r in passed]
    return {
        "verdict": verdict,
        "title": TITLES["not-run" if verdict == "continue" and faults and not ran else verdict],
        "claim": " ".join(
            [_claim(verdict, subject, passed, broken, gaps, faults), *map(_sentence, limits)]
        ),
        "reasons": reasons,
        "largest_gap": reasons[0]["text"] if verdict != "proceed" else _weakest(rows, items),
        "gates": rows,
    }


def _reason(row: dict[str, Any], items: dict[str, Any], kind: str) -> dict[str, Any]:
    if row["outcome"] == "open":
        why = _why_open(items.get(row["item"], {}))
        text = f"not established: {row['claim']} ({why})"
    else:
        detail = _first_finding(items.get(row["item"], {}), row["gate"])
        rule = f"{row['claim']}: {row['measure']} is {row['value']}, wanted {row['rule']}"
        text = f"{detail} [{rule}]" if detail else f"not so: {rule}"
    return {"text": text, "kind": kind, "gate": row["gate"]}


def _first_finding(item: dict[str, Any], gate: str) -> str:
    """The first finding of the item that names this gate as its consequence, with its place."""
    for finding in item.get("findings", []):
        if finding["gate"] == gate:
            where = f" ({finding['where']})" if finding["where"] else ""
            return f"{finding['text']}{where}"
    return ""


def _why_open(item: dict[str, Any]) -> str:
    if item.get("status") != "done":
        return str(item.get("reason") or "the stage gave no result")
    return "no measurement in this record"


def _weakest(rows: list[dict[str, Any]], items: dict[str, Any]) -> str:
    """What the evidence of a passing record still leaves out."""
    for row in rows:
        if row["level"] == "report" and row["outcome"] == "failed":
            return f"reported only: {row['claim']} ({row['measure']} is {row['value']})"
    for item in items.values():
        for statement in item.get("statements", []):
            if statement["evidence"] == "open":
                return f"left open: {statement['text']}"
    return "none among what was asked"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _claim(
    verdict: str,
    subject: str,
    passed: list[Any],
    broken: list[Any],
    gaps: list[Any],
    faults: list[Any],
) -> str:
    if verdict == "proceed":
        return (
            f"For {subject}: {len(passed)} of {len(passed)} applicable gates are met on the cases "
            "of this pilot. Nothing is claimed beyond them."
        )
    if verdict == "keep":
        names = ", ".join(r["gate"] for r in broken)
        return (
            f"For {subject}: {len(broken)} requirement(s) not met ({names}); "
            "the existing path stays."
        )
    failed = [*(f["kind"] for f in faults), *(r["gate"] for r in gaps if r["outcome"] == "failed")]
    unknown = [r["gate"] for r in gaps if r["outcome"] == "open"]
    parts = [
        f"{len(passed)} gates are met" if passed or gaps else f"{_UNJUDGED}, nothing is claimed"
    ]
    parts += [f"to be settled first: {', '.join(failed)}"] if failed else []
    parts += [f"not established: {', '.join(unknown)}"] if unknown else []
    return f"For {subject}: {'; '.join(parts)}."
