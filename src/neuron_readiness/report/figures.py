"""Which plots and tables a record gives, item by item."""

from __future__ import annotations

from typing import Any

from neuron_readiness.report import plots

Table = tuple[list[str], list[list[str]]]


def plot_of(name: str, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(caption, SVG) of an item."""
    return [(c, s) for c, s in _PLOTS.get(name, lambda _: [])(facts) if s]


def tables_of(name: str, facts: dict[str, Any]) -> list[tuple[str, Table]]:
    """(caption, (header, rows)) of an item."""
    return [(c, t) for c, t in _TABLES.get(name, lambda _: [])(facts) if t[1]]


def evidence_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """How each area is known: statements by kind, and the first that is open."""
    rows = []
    for name, item in record["items"].items():
        kinds = [s["evidence"] for s in item["statements"]]
        unknown = [s["text"] for s in item["statements"] if s["evidence"] == "open"]
        first = str(item.get("reason") or (unknown[0] if unknown else ""))
        rows.append(
            {
                "name": name,
                "title": item["title"],
                "first": first if len(first) <= 110 else first[:107] + "...",
                **{kind: kinds.count(kind) for kind in ("measured", "documented", "open")},
            }
        )
    return rows


def _shape_plots(facts: dict[str, Any]) -> list[tuple[str, str]]:
    points = [(float(x), float(y)) for x, y in facts.get("coverage", [])]
    text = "Traffic covered by the most frequent shapes"
    return [(text, plots.curve(points, text, "shapes", "share of traffic"))]


def _profile_plots(facts: dict[str, Any]) -> list[tuple[str, str]]:
    shares = facts.get("shares", {})
    text = "Share of a steady request by stage"
    rows = [(n, float(s), f"{s:.0%}") for n, s in shares.items()]
    return [(text, plots.bars(rows, text))]


def _performance_plots(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, run in facts.get("runs", {}).items():
        if "steady" in run:
            for title, value in (
                ("set-up", run["setup_s"]),
                ("first use", run["first_s"]),
                ("steady p50", run["steady"]["p50_s"]),
            ):
                rows.append((f"{name}: {title}", float(value), seconds(value)))
    text = "Set-up, first use and steady request"
    return [(text, plots.bars(rows, text))]


def _execution_plots(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (name, float(c["host_share_of_time"]), f"{c['host_share_of_time']:.0%}")
        for name, c in facts.get("by_case", {}).items()
        if c.get("host_operators")
    ]
    text = "Host operators' share of a request's operator time, cases that have any"
    return [(text, plots.bars(rows[:20], text))]


def _amortisation(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    table = facts.get("amortisation") or {}
    names = list(table)
    rows = []
    for i, row in enumerate(table[names[0]] if names else []):
        rows.append(
            [f"{row['operations']:,}", *(seconds(table[n][i]["seconds_each"]) for n in names)]
        )
    header = ["operations", *(f"{n} start, each" for n in names)]
    return [("Cost of one operation with set-up spread over them", (header, rows))]


def _cases(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    header = ["case", "on device", "on host", "host share of time", "bytes moved", "host operators"]
    rows = [
        [
            name,
            str(c["device_calls"]),
            str(c["host_calls"]),
            f"{c['host_share_of_time']:.1%}",
            f"{c['transferred_bytes']:,}",
            ", ".join(c["host_operators"]) or "none",
        ]
        for name, c in facts.get("by_case", {}).items()
        if "failed" not in c
    ]
    header_of_times = ["operator", "where", "calls", "share of time", "line"]
    times = [
        [e["overload"], e["place"], str(e["calls"]), f"{e['share']:.1%}", _place(e["line"])]
        for e in facts.get("by_time", [])
    ]
    return [
        ("Operators by case", (header, rows)),
        ("Operators that take the time, cases weighted by traffic", (header_of_times, times)),
    ]


def _inputs(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    header = ["case", "input", "shape", "least", "largest", "mean", "spread", "zeros"]
    rows = [
        [
            f"{r['case']} ({r['group']})",
            r["input"],
            f"{r['dtype']}{r['shape']}",
            *(value(r[k]) for k in ("least", "largest", "mean", "spread")),
            "" if r["zeros"] is None else f"{r['zeros']:.0%}",
        ]
        for r in facts.get("inputs", [])
    ]
    return [("Inputs that were compared", (header, rows))]


def _correctness(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    header = ["case", "layers compared", "first that diverges", "what it is"]
    rows = [
        [
            f"{r['case']} ({r['group']})",
            f"{r['compared']} of {r['count']}",
            f"{r['first_divergent']} ({r['type']})" if r["first_divergent"] else "none",
            r["origin"] or "",
        ]
        for r in (facts.get("layers") or {}).get("cases", [])
    ]
    return [("Layers by case", (header, rows)), *_inputs(facts)]


def _buckets(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    header = ["buckets", "compilations saved", "compile time saved", "execution added", "padded to"]
    rows = [
        [
            str(o["buckets"]),
            str(o["compiles_saved"]),
            seconds(o["compile_seconds_saved"]),
            o["said"],
            "; ".join(o["boundaries"]),
        ]
        for o in (facts.get("bucketing") or {}).get("options", [])
    ]
    return [("What bucketing would change", (header, rows))]


def _dependencies(facts: dict[str, Any]) -> list[tuple[str, Table]]:
    header = ["where", "kind", "what", "assumes", "on the target", "runs", "instead"]
    support = {True: "yes", False: "no", None: "to be tried"}
    rows = [
        [
            f"{h['file'].rsplit('/', 1)[-1]}:{h['line']}",
            h["kind"],
            h["text"],
            h["assumes"],
            support[h["supported"]],
            h["reach"],
            h["suggestion"],
        ]
        for h in facts.get("hits", [])
    ]
    return [("Dependencies found in the source", (header, rows))]


def _place(line: str) -> str:
    return line.rsplit("/", 1)[-1]


def value(found: Any) -> str:
    """A gate's value: nothing for none, a number with the digits that matter."""
    if found is None:
        return ""
    return f"{found:.4g}" if isinstance(found, float) else str(found)


def seconds(value: Any) -> str:
    """A duration with the unit that suits it."""
    if not isinstance(value, (int, float)) or value != value:
        return "-"
    if abs(value) >= 1:
        return f"{value:.2f} s"
    return f"{1000 * value:.3g} ms" if abs(value) >= 1e-3 else f"{1e6 * value:.3g} µs"


_PLOTS = {
    "shapes": _shape_plots,
    "profile": _profile_plots,
    "performance": _performance_plots,
    "execution": _execution_plots,
}
_TABLES = {
    "correctness": _correctness,
    "performance": _amortisation,
    "execution": _cases,
    "shapes": _buckets,
    "inventory": _dependencies,
}
