"""Worker processes: what hangs or dies costs its own row only."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from neuron_readiness.sweep import pool

# Answers as the real worker does, and misbehaves by name.
WORKER = """
import json, os, sys
for line in sys.stdin:
    source, name, family = json.loads(line)
    row = {"source": source, "name": name, "family": family, "pid": os.getpid()}
    part = {**row, "loads": True, "forward": True, "compiles": None, "at": "compiles"}
    if name == "hangs":
        os.write(int(sys.argv[1]), (json.dumps(part) + "\\n").encode())
    if name == "dies":
        os.abort()
    if name == "leaves":
        print("what went wrong", file=sys.stderr)
        sys.exit(3)
    while name == "hangs":
        pass
    while name == "waits":
        sys.stdin.readline()
    row["outcome"] = "done"
    os.write(int(sys.argv[1]), (json.dumps(row) + "\\n").encode())
"""


class Scripted(pool.Probe):
    def _command(self, answers: int) -> list[str]:
        return [sys.executable, "-c", WORKER, str(answers)]


def tasks(*names: str) -> list[pool.Task]:
    return [("s", name, "f") for name in names]


def test_a_worker_serves_many_and_is_replaced_when_it_fails() -> None:
    probe = Scripted("cpu", 20.0, {})
    try:
        first, second, dead, left, third = (
            probe.row(t) for t in tasks("a", "b", "dies", "leaves", "c")
        )
    finally:
        probe.close()
    assert first["outcome"] == "done" and first["pid"] == second["pid"]
    assert dead["outcome"] == "crashed" and "SIGABRT" in dead["errors"]["loads"]
    assert "what went wrong" in left["errors"]["loads"]
    assert third["outcome"] == "done" and third["pid"] != first["pid"]


@pytest.mark.parametrize("way", ["hangs", "waits"])  # with processor time, and without
def test_a_worker_that_hangs_is_ended(way: str) -> None:
    probe = Scripted("cpu", 0.3, {})
    try:
        lost = probe.row(tasks(way)[0])
    finally:
        probe.close()
    assert lost["outcome"] == "timed out" and lost["name"] == way
    if way == "hangs":  # what it had answered is kept; the column it hung in is answered with no
        assert lost["forward"] is True and lost["compiles"] is False
        assert "s of processor time" in lost["errors"]["compiles"]


def test_every_task_gets_a_row_from_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Probe", Scripted)
    rows: list[dict[str, Any]] = []
    pool.run(tasks("a", "dies", "b", "c", "d"), "cpu", 2, 20.0, rows.append)
    assert sorted(r["name"] for r in rows) == ["a", "b", "c", "d", "dies"]
    assert sum(r["outcome"] == "crashed" for r in rows) == 1
