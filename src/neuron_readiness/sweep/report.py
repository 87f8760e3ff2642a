"""Parquet, JSON, HTML and Markdown of a sweep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from neuron_readiness.run import store
from neuron_readiness.sweep import results


def build(rows: list[dict[str, Any]], device: str, weights: dict[str, float], **more: Any) -> Any:
    """The whole result, JSON-ready."""
    return {
        "schema": "neuron-readiness/sweep",
        "schema_version": 1,
        "device": device,
        "tried": len(rows),
        "outcomes": results.outcomes(rows),
        "columns": results.summary(rows, weights),
        "families": results.by_family(rows),
        "first_to_fix": results.first_to_fix(rows),
        "graph_breaks": sum(bool(r.get("graph_breaks")) for r in rows),
        **more,
    }


def write(folder: Path, rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
    store.write(folder / "sweep.json", result)
    store.write(folder / "sweep.md", markdown(result))
    store.write(folder / "sweep.html", html(result, rows))
    _parquet(folder, rows)


def _parquet(folder: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    names = sorted({key for row in rows for key in row})
    columns = {name: [_cell(row.get(name)) for row in rows] for name in names}
    part = folder / ".sweep.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), part)
    os.replace(part, folder / "sweep.parquet")


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {v}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value in ("inf", "nan", "-inf"):
        return float(value)
    return value


def markdown(result: dict[str, Any]) -> str:
    """The summary and what to fix first."""
    ends = ", ".join(f"{n} {k}" for k, n in sorted(result["outcomes"].items()))
    lines = [
        f"# Sweep on {result['device']}: {result['tried']} architectures",
        "",
        f"Processes: {ends}. Reduced configurations, random weights; every column has its own "
        "denominator.",
        "",
        "| column | passed | of | denominator | by downloads |",
        "|---|---|---|---|---|",
    ]
    for c in result["columns"]:
        weighted = "-" if c["weighted"] is None else f"{c['weighted']:.1%} of {c['weighted_over']}"
        lines.append(
            f"| {c['column']} | {c['passed']} | {c['of']} | {c['denominator']} | {weighted} |"
        )
    lines += [
        "",
        f"{result['graph_breaks']} architectures have graph breaks.",
        "",
        "What to fix first:",
        "",
        "| models | what | cause | for instance |",
        "|---|---|---|---|",
    ]
    for row in result["first_to_fix"][:40]:
        cause = row["cause"].replace("|", "\\|")
        lines.append(
            f"| {row['models']} | {row['what']} | {cause} | {', '.join(row['examples'][:3])} |"
        )
    return "\n".join(lines) + "\n"


def html(result: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """One self-contained page: summary, what to fix first, families, every architecture."""
    from neuron_readiness.report.render import environment

    template = environment(html=True).get_template("sweep.html.j2")
    ordered = sorted(rows, key=lambda r: (r["source"], r["family"], r["name"]))
    return str(template.render(result=result, rows=ordered, columns=list(results.COLUMNS)))
