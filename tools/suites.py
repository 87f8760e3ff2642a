"""How the templates over PyTorch's own databases come out, as ``docs/suites.md``.

    python tools/suites.py run [PYTEST ARGUMENTS]   # runs tests/suites, keeps each outcome
    python tools/suites.py page > docs/suites.md    # the page of what is kept

A run takes hours, so that ``run`` keeps every outcome as it comes, in ``docs/suites.parquet``, with
the revision and the day, in place of the case's earlier one; a part is run with pytest's arguments
(``run -k "compiled and nn_Transformer"``), what no run has reached with ``run --left``. Cases that
the databases no longer have go. A process that dies loses nothing but the case that it was in.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from neuron_readiness.sweep.revision import of_sources

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "docs" / "suites.parquet"
SUITES = ROOT / "tests" / "suites"
FIELDS = ("file", "case", "outcome", "reason", "revision", "day")
OUTCOMES = ("passed", "declared", "failed", "skipped", "not run")
HEAD = """\
# PyTorch's databases on the device

The templates in `tests/suites/` over the databases that PyTorch ships (`module_db`, `optim_db`,
those of foreach functions and of higher-order operators), on the default CPU plugin. Written by
`python tools/suites.py` from the outcomes of runs, never by hand. *Declared* cases are expected to
fail, each for a reason (`tests/suites/declared.py`); one that passes counts as failed. *Skipped*
are forms that an optimizer does not have.

| Suite | Template | Cases | Passed | Declared | Failed | Skipped | Not run | Passed of run | When | Revision |
|---|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501


class Outcomes:
    """A pytest plug-in: the outcome of every case, written as it comes."""

    def __init__(self, path: Path, left: bool) -> None:
        self.path, self.left = path, left
        self.rows = {(row["file"], row["case"]): row for row in read(path)}
        self.revision = of_sources(Path(__file__)) or ""
        self.day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")

    def pytest_itemcollected(self, item: Any) -> None:
        """Called for each case, those that are not chosen included."""
        key = item.path.name, item.name
        empty = dict.fromkeys(FIELDS, "") | {"file": key[0], "case": key[1], "outcome": "not run"}
        self.rows.setdefault(key, empty)["here"] = True

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.left:
            items[:] = [i for i in items if self._row(i)["outcome"] == "not run"]

    def pytest_collection_finish(self, session: Any) -> None:
        files = {key[0] for key, row in self.rows.items() if row.get("here")}
        gone = [k for k, row in self.rows.items() if k[0] in files and not row.pop("here", False)]
        for key in gone:
            del self.rows[key]
        self._write()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        file, _, rest = report.nodeid.partition("::")
        row = self.rows[Path(file).name, rest.rpartition("::")[2]]
        expected = getattr(report, "wasxfail", None)
        outcome = "declared" if expected is not None else str(report.outcome)
        reason = expected or _last_line(report) if outcome in ("declared", "failed") else ""
        row |= {"outcome": outcome, "reason": reason, "revision": self.revision, "day": self.day}
        self._write()

    def _row(self, item: Any) -> dict[str, Any]:
        return self.rows[item.path.name, item.name]

    def _write(self) -> None:
        write(self.path, list(self.rows.values()))


def read(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist() if path.exists() else []


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    ordered = sorted(rows, key=lambda row: (row["file"], row["case"]))
    columns = {n: pyarrow.array([row[n] for row in ordered], pyarrow.string()) for n in FIELDS}
    part = path.with_name(f".{path.name}")
    pyarrow.parquet.write_table(pyarrow.table(columns), part, compression="zstd")
    part.replace(path)


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:300]


def run(arguments: list[str]) -> int:
    """Runs cases and keeps their outcomes; pytest's exit status."""
    import pytest

    left = "--left" in arguments
    arguments = [a for a in arguments if a != "--left"]
    paths = [] if any("tests/suites" in a for a in arguments) else _files()
    return int(pytest.main(["-q", *arguments, *paths], plugins=[Outcomes(CASES, left)]))


def _files() -> list[str]:
    return [str(path) for path in sorted(SUITES.glob("test_*_db.py"))]


def page(rows: list[dict[str, Any]]) -> str:
    """``docs/suites.md``."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["file"], _template(row)].append(row)
    lines = []
    for (file, template), members in sorted(groups.items()):
        counts = Counter(row["outcome"] for row in members)
        run = counts["passed"] + counts["declared"] + counts["failed"]
        share = f"{100 * counts['passed'] / run:.1f}%" if run else "-"
        days = sorted({row["day"] for row in members if row["day"]})
        when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "-"
        revisions = sorted({row["revision"] for row in members if row["revision"]})
        cells = [len(members), *(counts[o] for o in OUTCOMES), share, when]
        link = f"[{file}](../tests/suites/{file})"
        names = ", ".join(f"`{r}`" for r in revisions) or "-"
        lines.append(f"| {link} | {template} | {' | '.join(map(str, cells))} | {names} |")
    text = HEAD + "\n".join(lines) + "\n"
    for outcome in ("failed", "declared"):
        named = [f"- `{r['case']}`: {r['reason']}" for r in rows if r["outcome"] == outcome]
        if named:
            text += f"\n{outcome.capitalize()}:\n\n" + "\n".join(named) + "\n"
    return text


def _template(row: dict[str, Any]) -> str:
    """The function of the template that a case is made from."""
    names = re.findall(r"def (test_\w+)\(", (SUITES / row["file"]).read_text())
    fitting = [name for name in names if re.match(rf"{name}(_|\[|$)", row["case"])]
    return max(fitting, key=len, default="?")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:
        return run(arguments[1:])
    if arguments == ["page"]:
        print(page(read(CASES)), end="")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
