"""``neuron-readiness sweep``: what it asks for, in which order, and how it weighs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_readiness import cli
from neuron_readiness.sweep import choose, pool, table

TASKS = [("timm", f"{family}{i}", family) for family in ("a", "b") for i in range(4)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures in the order they are run; those of family "a" do not run forward."""
    names: list[str] = []

    def run(tasks: Any, device: str, workers: int, timeout_s: float, done: Any) -> None:
        for source, name, family in tasks:
            names.append(name)
            row = {"source": source, "name": name, "family": family, "outcome": "done"}
            done({**row, "loads": True, "forward": family == "b", "errors": {}})

    monkeypatch.setattr(choose, "tasks_of", lambda sources: (TASKS, {}))
    monkeypatch.setattr(pool, "run", run)
    return names


def test_downloads_of_a_file_weigh_the_columns(tmp_path: Path, asked: list[str]) -> None:
    counts = tmp_path / "downloads.json"
    counts.write_text(json.dumps({"a0": 10, "b0": 30, "unheard-of": 1000}))
    out = ["--device", "cpu", "--out", str(tmp_path / "out"), "--quiet"]
    assert cli.main(["sweep", "--source", "timm", "--downloads", str(counts), *out]) == 0
    columns = json.loads((tmp_path / "out" / "sweep.json").read_text())["columns"]
    forward = next(c for c in columns if c["column"] == "forward")
    assert (forward["passed"], forward["of"]) == (4, 8)
    assert (forward["weighted"], forward["weighted_over"]) == (0.75, 2)
    assert "| forward | 4 | 8 | loads | 75.0% of 2 |" in (tmp_path / "out" / "sweep.md").read_text()


def test_a_file_of_downloads_that_is_no_json_is_refused(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    counts = tmp_path / "downloads.csv"
    counts.write_text("a0,10")
    out = ["--device", "cpu", "--out", str(tmp_path / "out"), "--quiet"]
    assert cli.main(["sweep", "--source", "timm", "--downloads", str(counts), *out]) == 2
    assert "--downloads" in capsys.readouterr().err and asked == []


def test_what_has_run_is_a_sample_at_any_time(tmp_path: Path, asked: list[str]) -> None:
    out = ["--device", "cpu", "--out", str(tmp_path / "out"), "--quiet"]
    assert cli.main(["sweep", "--source", "timm", *out]) == 0
    assert sorted(asked) == sorted(t[1] for t in TASKS)
    assert {name[0] for name in asked[:2]} == {"a", "b"}


def test_unknown_names_are_told_with_what_names_look_like(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--device", "cpu", "--out", str(tmp_path / "out"), "--quiet"]
    names = ["--name", "a0", "--name", "B1x", "--name", "gpt-something"]
    assert cli.main(["sweep", "--source", "timm", *names, *out]) == 2
    said = capsys.readouterr().err
    assert "--name B1x: no source has it; expected b1" in said
    assert "--name gpt-something: no source has it; expected names like a0, a1, a2" in said
    assert "--name a0" not in said and asked == []


def test_a_start_s_rows_are_not_run_again_unless_they_lack_something(
    tmp_path: Path, asked: list[str]
) -> None:
    common = {"source": "timm", "family": "a", "device": "cpu", "outcome": "done", "loads": True}
    table.write(
        tmp_path / "start.parquet",
        [
            {**common, "name": "a0"},
            {**common, "name": "a1", "without_messages": True},
            {**common, "name": "a2", "loads": False},
        ],
    )
    out = ["--device", "cpu", "--quiet", "--source", "timm"]
    start = ["--start", str(tmp_path / "start.parquet")]
    assert cli.main(["sweep", *out, *start, "--out", str(tmp_path / "one")]) == 0
    assert sorted(asked) == ["a3", "b0", "b1", "b2", "b3"]
    rows, _ = table.read(tmp_path / "one" / "sweep.parquet")
    assert len(rows) == 8 and next(r for r in rows if r["name"] == "a1")["without_messages"]
    asked.clear()
    assert cli.main(["sweep", *out, *start, "--out", str(tmp_path / "one"), "--retry"]) == 0
    assert sorted(asked) == ["a1", "a2"]
