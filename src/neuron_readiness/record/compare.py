"""Two records side by side: two devices, two versions, or before and after a change."""

from __future__ import annotations

from typing import Any

from neuron_readiness.record.assemble import changes_of

# Figures worth a line each, by item. Everything else is in the two records.
_FIGURES = (
    "correctness.ordinary.failed",
    "correctness.ordinary.worst_in_tolerances",
    "correctness.hard.failed",
    "correctness.task.flips",
    "correctness.gradients.failed",
    "correctness.layers.first_divergent",
    "correctness.layers.divergent_cases",
    "correctness.precision.reduced",
    "execution.operators",
    "execution.unaccepted_host_operators",
    "execution.transferred_bytes",
    "execution.graphs.graphs",
    "execution.graphs.failure",
    "execution.graphs.outside",
    "shapes.families",
    "shapes.compiles",
    "shapes.compile_seconds",
    "performance.path",
    "performance.runs.cold.first_s",
    "performance.runs.warm.first_s",
    "performance.runs.warm.steady.p50_s",
    "performance.runs.warm.steady.p95_s",
    "performance.runs.warm.steady.p99_s",
    "performance.runs.warm.throughput_per_s",
    "performance.runs.warm.useful_per_elapsed_s",
    "performance.failed_runs",
    "profile.largest",
    "profile.memory.peak_bytes",
    "operations.recovery.not_restored",
    "operations.recovery.same_trajectory",
    "effort.lines_changed",
)


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """What changed from ``a`` to ``b``: environment, options, figures, gates, decision."""
    figures = [
        {"name": n, "a": _at(a, n), "b": _at(b, n), "changed": _at(a, n) != _at(b, n)}
        for n in _FIGURES
    ]
    return {
        "records": [
            {k: r[k] for k in ("name", "created", "options", "tool_version")} for r in (a, b)
        ],
        "same_pilot": a["pilot"]["sha256"] == b["pilot"]["sha256"],
        "same_weights": _same(_at(a, "inventory.model.sha256"), _at(b, "inventory.model.sha256")),
        "decision": [
            {k: r["decision"][k] for k in ("verdict", "title", "largest_gap")} for r in (a, b)
        ],
        "environment": changes_of(_environment(a), _environment(b)),
        "options": changes_of(a["options"], b["options"]),
        "figures": [f for f in figures if f["a"] is not None or f["b"] is not None],
        "gates": changes_of(_outcomes(a), _outcomes(b)),
    }


def _same(a: Any, b: Any) -> bool | None:
    """None where one of the two is not known."""
    return None if a is None or b is None else bool(a == b)


def _environment(record: dict[str, Any]) -> Any:
    return record["items"]["environment"]["facts"]


def _outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {g["gate"]: g["outcome"] for g in record["decision"]["gates"]}


def _at(record: dict[str, Any], path: str) -> Any:
    name, *rest = path.split(".")
    value: Any = record["items"].get(name, {}).get("facts", {})
    for part in rest:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def render(result: dict[str, Any]) -> str:
    """Text: the decisions, then what changed, most telling first."""
    a, b = result["records"]
    titles = [f"{r['name']} on {r['options']['device']} ({r['created']})" for r in (a, b)]
    lines = [f"A  {titles[0]}", f"B  {titles[1]}"]
    if not result["same_pilot"]:
        lines.append("The pilot files differ: the two records are not about the same workload.")
    if result["same_weights"] is False:
        lines.append("The weights differ: numbers are compared over another model.")
    first, second = result["decision"]
    lines += ["", f"decision   A {first['title']}   B {second['title']}"]
    lines += [f"largest gap A  {first['largest_gap']}", f"largest gap B  {second['largest_gap']}"]
    for title in ("gates", "options", "environment"):
        rows = result[title]
        lines += ["", f"{title}: {len(rows)} changed" if rows else f"{title}: the same"]
        lines += [
            f"  {r['name']}: {_short(r['before'])} -> {_short(r['after'])}" for r in rows[:40]
        ]
    changed = [f for f in result["figures"] if f["changed"]]
    lines += ["", f"figures: {len(changed)} of {len(result['figures'])} changed"]
    lines += [f"  {f['name']}: {_short(f['a'])} -> {_short(f['b'])}" for f in changed]
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 100 else text[:97] + "..."
