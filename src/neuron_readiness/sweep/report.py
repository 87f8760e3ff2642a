"""Parquet, JSON, HTML and Markdown of a sweep."""

from __future__ import annotations

import json
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
        "aims": results.aims(rows),
        "columns": results.summary(rows, weights),
        "families": results.by_family(rows),
        "first_to_fix": results.first_to_fix(rows),
        "graph_breaks": sum(bool(r.get("graph_breaks")) for r in rows),
        "unstable": _beyond(rows, "reference_moves", "reference_gradients_move"),
        "captured_otherwise": _beyond(rows, "capture_moves"),
        **more,
    }


def _beyond(rows: list[dict[str, Any]], *columns: str) -> list[str]:
    """Architectures that are more than a tolerance away in one of the columns."""
    return sorted(r["name"] for r in rows if any(float(r.get(c) or 0) > 1 for c in columns))


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
    if isinstance(value, (dict, list)):
        return json.dumps(value)
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
        *[_aim(aim) for aim in result["aims"]],
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
        *(_unstable(result["unstable"]) if result["unstable"] else []),
        *(_captured_otherwise(result["captured_otherwise"])),
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


def _aim(aim: dict[str, Any]) -> str:
    of = aim["of"]
    share = f", {(aim['passed'] + aim['excused']) / of:.1%} in all" if of else ""
    return (
        f"- Of {of} architectures that run on the CPU, {aim['passed']} {aim['aim']}; of "
        f"{aim['excused']} others {aim['excuse']}{share} (aim: {aim['least']:.0%})."
    )


def _captured_otherwise(names: list[str]) -> list[str]:
    if not names:
        return []
    return [
        "",
        "As Dynamo captures them, these compute something else with PyTorch's own kernels on the "
        "CPU too, and are compared with that where compiled: "
        f"{', '.join(names)}.",
    ]


def _unstable(names: list[str]) -> list[str]:
    return [
        "",
        f"Of those that differ, the reference itself moves as far where equal values are ordered "
        f"otherwise, weights rounded once more or subnormal numbers zero: {', '.join(names)}.",
    ]


def document(parquet: Path, note: str) -> str:
    """docs/sweep.md from a result: the summary, families, and every architecture in a line.
    ``note``: how the sweep was run, in a sentence."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(parquet).to_pylist()
    for row in rows:
        for key in ("host_operators", "break_reasons", "errors"):
            row[key] = json.loads(row[key]) if row.get(key) else None
    title, rest = markdown(build(rows, rows[0]["device"], {})).split("\n", 1)
    text = f"{title}\n\nGenerated by `tools/generate_sweep.py`. {note}\n{rest}"
    columns = list(results.COLUMNS)
    lines = ["", "By family:", "", f"| source | family | tried | {' | '.join(columns)} |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    for family in results.by_family(rows):
        cells = [family["source"], family["family"], family["tried"], *(family[c] for c in columns)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Every architecture (y yes, n no, - does not apply or was not reached):", ""]
    lines += [f"| architecture | reduction | {' | '.join(columns)} | breaks |"]
    lines.append("|---" * (len(columns) + 3) + "|")
    word = {True: "y", False: "n", None: "-"}
    for row in sorted(rows, key=lambda r: (r["source"], r["name"])):
        cells = [row["name"], row.get("reduction") or "-", *(word[row.get(c)] for c in columns)]
        breaks = row.get("graph_breaks")
        lines.append(f"| {' | '.join(cells)} | {'-' if breaks is None else int(breaks)} |")
    return text + "\n".join(lines) + "\n"


def html(result: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """One self-contained page: summary, what to fix first, families, every architecture."""
    from neuron_readiness.report.render import environment

    template = environment(html=True).get_template("sweep.html.j2")
    ordered = sorted(rows, key=lambda r: (r["source"], r["family"], r["name"]))
    return str(template.render(result=result, rows=ordered, columns=list(results.COLUMNS)))
