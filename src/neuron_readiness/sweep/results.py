"""Rows of a sweep: kept as they come, summed up with each column's own denominator."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

# Column -> the column that counts its denominator; None: every architecture that was tried.
# Here and not beside the probe, since this module does without torch.
COLUMNS: dict[str, str | None] = {
    "loads": None,
    "forward": "loads",
    "agrees": "forward",
    "backward": "trainable",
    "backward_agrees": "backward",
    "compiles": "loads",
    "fullgraph": "loads",
    "compiled_agrees": "compiles",
    "on_device": "forward",
}
Key = tuple[str, str]


class Rows:
    """``rows.jsonl``: one line an architecture, appended as it ends, so that a sweep that stops
    loses nothing and goes on where it was. ``given``: rows of an earlier sweep that count as run;
    ``ran``: what every new row says of its run."""

    def __init__(
        self,
        folder: Path,
        device: str,
        given: list[dict[str, Any]] | None = None,
        ran: dict[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "rows.jsonl"
        self.device = device
        self._ran = ran or {}
        self.rows = {(r["source"], r["name"]): r for r in given or [] if r["device"] == device}
        if self._path.exists():
            text = self._path.read_text()
            if text and not text.endswith("\n"):
                self._path.write_text(text + "\n")  # what was cut off must not take the next row
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # cut off by a kill
                if row.get("device") == device:
                    self.rows[row["source"], row["name"]] = row

    def add(self, row: dict[str, Any]) -> None:
        now = {"when": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "load": os.getloadavg()[0]}
        row = {"device": self.device, **self._ran, **now, **row}
        self.rows[row["source"], row["name"]] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def runs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran of each revision: the days, how many rows of each source, and the least and greatest
    load average of the machine, where they were noted."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row.get("revision") or ""].append(row)
    found = []
    for revision, members in groups.items():
        days = sorted({r["when"][:10] for r in members if r.get("when")})
        loads = [r["load"] for r in members if r.get("load") is not None]
        found.append(
            {
                "revision": revision,
                "when": " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not noted",
                "rows": len(members),
                "sources": dict(sorted(Counter(r["source"] for r in members).items())),
                "load": (min(loads), max(loads)) if loads else None,
            }
        )
    return sorted(found, key=lambda run: (run["when"] == "not noted", run["when"], run["revision"]))


def summary(rows: list[dict[str, Any]], weights: dict[str, float]) -> list[dict[str, Any]]:
    """One line a column: how many, of how many, and weighted by downloads where counts are given.

    An architecture whose process was lost counts as tried and as not passing what it had not
    reached; a column that does not apply to it counts nowhere.
    """
    lines = []
    for column, base in COLUMNS.items():
        of = [r for r in rows if _passes(r, base)]
        passed = [r for r in of if r.get(column) is True]
        line: dict[str, Any] = {
            "column": column,
            "passed": len(passed),
            "of": len(of),
            "denominator": base or "tried",
            "weighted": None,
        }
        known = [r for r in of if r["name"] in weights]
        total = sum(weights[r["name"]] for r in known)
        if total:
            share = sum(weights[r["name"]] for r in known if r.get(column) is True) / total
            line |= {"weighted": share, "weighted_over": len(known)}
        lines.append(line)
    return lines


def _passes(row: dict[str, Any], column: str | None) -> bool:
    return column is None or row.get(column) is True


# Reasons of Dynamo that are the model's own: Python that depends on what a tensor holds.
_DATA = re.compile(
    r"data[- ]?dependent|dynamic shape operator|tensor\.item\(\)"
    r"|builtin operator: range of .*'Tensor'",
    re.IGNORECASE,
)


def aims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two figures that a backend is judged by, of the architectures that run on the CPU:
    ``passed``, ``of``, and ``excused`` where the model itself is the reason that it does not."""
    runs = [r for r in rows if r.get("loads") is True]
    return [
        {
            "aim": "forward and backward entirely on the device, and agree",
            "passed": sum(_right(r) for r in runs),
            "excused": sum(not _right(r) and _right(_without_unstable(r)) for r in runs),
            "excuse": "the reference itself moves as far (rounding, equals, chance, subnormals, "
            "strides)",
            "of": len(runs),
            "least": 0.95,
        },
        {
            "aim": "compile as one graph",
            "passed": sum(r.get("fullgraph") is True for r in runs),
            "excused": sum(_data_dependent(r) for r in runs),
            "excuse": "the model's own Python depends on data",
            "of": len(runs),
            "least": 0.90,
        },
    ]


def _right(row: dict[str, Any]) -> bool:
    forward = all(row.get(c) is True for c in ("forward", "agrees", "on_device"))
    backward = all(row.get(c) is True for c in ("backward", "backward_agrees"))
    return forward and (backward or row.get("trainable") is False)


def _without_unstable(row: dict[str, Any]) -> dict[str, Any]:
    """A row with disagreement forgiven where the reference moves as far."""
    outputs = (row.get("reference_moves") or 0) > 1
    gradients = outputs or (row.get("reference_gradients_move") or 0) > 1
    changed = {"agrees": True} if outputs and row.get("forward") else {}
    if gradients and row.get("backward"):
        changed["backward_agrees"] = True
    return {**row, **changed}


def _data_dependent(row: dict[str, Any]) -> bool:
    """Whether every reason that it is not one graph is data-dependent Python, and PyTorch's own
    capture on the CPU stops there too (where it was asked)."""
    if row.get("fullgraph") is not False or row.get("reference_captures") is True:
        return False
    reasons = row.get("break_reasons") or [(row.get("errors") or {}).get("fullgraph", "")]
    return all(_DATA.search(reason) for reason in reasons)


def by_family(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per source and family: counts of each column with its denominator."""
    groups: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["source"], row["family"]].append(row)
    table = []
    for (source, family), members in sorted(groups.items()):
        cells = {s["column"]: f"{s['passed']}/{s['of']}" for s in summary(members, {})}
        table.append({"source": source, "family": family, "tried": len(members), **cells})
    return table


def first_to_fix(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Host operators and errors, by the number of architectures that meet them."""
    operators: Counter[tuple[str, str]] = Counter()
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        causes = {("runs on the host", name) for name in row.get("host_operators") or []}
        causes |= {("graph break", _kind(text)) for text in row.get("break_reasons") or []}
        for column, text in (row.get("errors") or {}).items():
            # What does not load, or a lost machine, is not the device's; breaks have their reasons.
            if column not in ("loads", "cluster", "fullgraph"):
                causes.add((f"{column} fails", _kind(text)))
        for cause in causes:
            operators[cause] += 1
            models[cause].append(row["name"])
    return [
        {"what": what, "cause": cause, "models": count, "examples": sorted(models[what, cause])[:5]}
        for (what, cause), count in sorted(operators.items(), key=lambda kv: (-kv[1], kv[0]))
    ]


def _kind(text: str) -> str:
    """An error without what differs from model to model: sizes and numbers."""
    head = text.split("\n")[0][:160]
    return "".join("#" if c.isdigit() else c for c in head)


def outcomes(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How the processes ended: done, timed out, crashed, lost with a machine of the cluster."""
    return dict(Counter(r.get("outcome") or "not noted" for r in rows))
