"""Rows of a sweep and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuron_readiness.sweep import choose, probe, report, results


def row(name: str, **columns: Any) -> dict[str, Any]:
    base = {"source": "s", "name": name, "family": "f", "outcome": "done", "errors": {}}
    return {**base, "host_operators": [], **columns}


ROWS = [
    row("a", loads=True, forward=True, agrees=True, on_device=True, trainable=True, backward=True),
    row("b", loads=True, forward=True, agrees=False, on_device=False, host_operators=["aten::z"]),
    row("c", loads=True, forward=False, errors={"forward": "E: no rule for size 3"}),
    row("d", loads=False, errors={"loads": "E: no inputs"}),
    {"source": "s", "name": "e", "family": "g", "outcome": "timed out", "errors": {}},
]


def test_each_column_has_its_own_denominator() -> None:
    lines = {s["column"]: (s["passed"], s["of"]) for s in results.summary(ROWS, {})}
    assert lines["loads"] == (3, 5)  # what timed out was tried
    assert lines["forward"] == (2, 3)
    assert lines["agrees"] == lines["on_device"] == (1, 2)
    assert lines["backward"] == (1, 1)  # of what can be trained
    assert lines["compiles"] == (0, 3)


def test_weights_by_downloads() -> None:
    lines = {s["column"]: s for s in results.summary(ROWS, {"a": 90.0, "b": 10.0})}
    assert lines["agrees"]["weighted"] == 0.9
    assert lines["agrees"]["weighted_over"] == 2
    assert results.summary(ROWS, {})[0]["weighted"] is None


def test_both_aims_say_what_passed_and_what_the_model_itself_prevents() -> None:
    right = dict.fromkeys(
        ("loads", "forward", "agrees", "backward", "backward_agrees", "on_device", "fullgraph"),
        True,
    )
    rows = [
        row("right", **right),
        row("no gradient", **{**right, "backward": None, "trainable": False}),
        row("unstable", **{**right, "agrees": False, "reference_moves": 40.0, "fullgraph": False}),
        row("unstable gradient", **{**right, "backward_agrees": False, "fullgraph": False},
            reference_gradients_move=2.0, break_reasons=["Dynamic shape operator"]),
        row("wrong", **{**right, "agrees": False, "fullgraph": False}, reference_moves=0.1,
            break_reasons=["Data dependent operator", "Attempted to wrap RNN, GRU, or LSTM"]),
        row("ours", **{**right, "on_device": False, "fullgraph": False}, reference_captures=True,
            break_reasons=["Data dependent operator"]),
        row("does not load", loads=False),
    ]  # fmt: skip
    device, graph = results.aims(rows)
    assert (device["passed"], device["excused"], device["of"]) == (2, 2, 6)
    assert (graph["passed"], graph["excused"], graph["of"]) == (2, 1, 6)
    text = report.markdown(report.build(rows, "cpu", {}))
    assert "Of 6 architectures that run on the CPU, 2 forward and backward entirely on" in text
    assert "66.7% in all (aim: 95%)" in text and "50.0% in all (aim: 90%)" in text


def test_what_to_fix_first_is_ranked_by_models_affected() -> None:
    more = [row("f", errors={"forward": "E: no rule for size 9"}), row("g", host_operators=["x"])]
    ranked = results.first_to_fix([*ROWS, *more])
    assert ranked[0] == {
        "what": "forward fails",
        "cause": "E: no rule for size #",  # one kind, whatever the size
        "models": 2,
        "examples": ["c", "f"],
    }
    assert {r["cause"] for r in ranked} == {"E: no rule for size #", "aten::z", "x"}


def test_both_tables_of_columns_are_one() -> None:
    assert results.COLUMNS == probe.COLUMNS


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    rows = results.Rows(tmp_path, "cpu")
    rows.add(ROWS[0])
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"source": "s", "na')  # killed while writing
    assert set(results.Rows(tmp_path, "cpu").rows) == {("s", "a")}
    assert results.Rows(tmp_path, "other").rows == {}  # another device's rows are not its own


def test_a_row_after_one_that_was_cut_off_is_kept(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"source": "s", "na')
    results.Rows(tmp_path, "cpu").add(ROWS[0])
    assert set(results.Rows(tmp_path, "cpu").rows) == {("s", "a")}


def test_a_sample_is_stratified_and_always_the_same() -> None:
    sizes = {"big": 90, "mid": 9, "one": 1}
    tasks = [("s", f"{f}{i}", f) for f, n in sizes.items() for i in range(n)]
    sample = choose.stratified(tasks, 20)
    counts = {f: sum(t[2] == f for t in sample) for f in sizes}
    assert counts["one"] == 1 and counts["mid"] in (2, 3) and len(sample) == len(set(sample)) == 20
    assert choose.stratified(list(reversed(tasks)), 20) == sample
    assert choose.stratified(tasks, 10)[:10] == sample[:10]  # a larger sample holds the smaller
    assert len(choose.stratified(tasks, 1000)) == 100


def test_reports(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    result = report.build(ROWS, "cpu", {})
    report.write(tmp_path, ROWS, result)
    assert parquet.read_table(tmp_path / "sweep.parquet").num_rows == len(ROWS)
    page = (tmp_path / "sweep.html").read_text()
    assert "<script" not in page and "aten::z" in page and "1 timed out" in page
    assert "| agrees | 1 | 2 | forward | - |" in (tmp_path / "sweep.md").read_text()
    assert json.loads((tmp_path / "sweep.json").read_text())["tried"] == 5
