"""Every benchmark runs and prints what it promises. No time is asserted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
KEYS = {
    "adaptive": {"case"},
    "instructions": {"case", "way", "total", "pytorch"},
    "launch": {"case", "cpu_us", "neuron_us", "adaptive_us", "ratio", "plugin", "threads"},
    "import_time": {"with_ms", "without_ms", "added_ms", "added_modules"},
    "first_step": {"case", "cache", "part"},
    "keys": {"case", "positions", "executables", "us_per_position"},
    "background": {"lowering", "longest_stall_ms", "compilations"},
    "compile": {"case", "dtype"},
    "readiness": {"case", "clock", "bare_us", "recorded_us", "overhead", "noise", "load"},
    "dataloader": {"device", "deadlock", "seconds", "warnings"},
}
pytestmark = pytest.mark.bench


def run(name: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", *arguments],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines
    for line in lines:
        assert line["benchmark"] == name
        assert line.keys() >= KEYS[name], line
    return lines


def test_every_benchmark_is_tested() -> None:
    assert {p.stem for p in BENCHMARKS.glob("[!_]*.py")} == KEYS.keys()


def test_launch() -> None:
    cases = [line["case"] for line in run("launch")]
    assert cases == [
        "add", "mul_changing_number", "view_add", "add_in_place", "matmul_64", "sum",
        "foreach_add_100", "optimizer_100",
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("valgrind"), reason="counts with valgrind")
def test_instructions() -> None:
    (line,) = run("instructions", "--cases", "add", "--ways", "neuron")
    assert line["case"] == "add" and line["way"] == "neuron"
    parts = ("plugin", "ours", "tensors", "pytorch")
    assert all(line[part] > 0 for part in parts)
    assert abs(sum(line[part] for part in parts) - line["total"]) <= len(parts)  # rounding


def test_import_adds_no_heavy_module() -> None:
    (line,) = run("import_time")
    assert line["added_modules"] == []


def test_positions_share_executables() -> None:
    lines = run("keys")
    assert [line["case"] for line in lines] == ["index", "decode"]
    assert all(line["executables"] <= 3 for line in lines), lines


def test_main_thread_while_compiling() -> None:
    lines = {line["lowering"]: line for line in run("background")}
    assert lines["idle"]["compilations"] == 0
    assert lines["server"]["compilations"] > 0
    assert lines["inprocess"]["compilations"] > 0


def test_dataloader_after_eager_work() -> None:
    for line in run("dataloader"):
        assert not line["deadlock"]
        assert line["warnings"] == []
        assert line["messages"] == []


@pytest.mark.full
def test_second_process_compiles_nothing() -> None:
    lines = [line for line in run("first_step") if line["case"] == "gpt"]
    by_cache = {
        state: [line for line in lines if line["cache"] == state] for state in ("cold", "warm")
    }
    assert by_cache["cold"][0]["compilations"] > 0
    assert [line["compilations"] for line in by_cache["warm"]] == [0, 0]
    assert [line["lowering_servers"] for line in by_cache["warm"]] == [0, 0]
    assert all(line["fallback"] == [] for line in lines)


@pytest.mark.full
def test_compiled_models_start_from_the_cache() -> None:
    lines = run("compile")
    first = {(line["contender"], line["cache"]): line for line in lines if "cache" in line}
    assert first["neuron", "cold"]["compilations"] > 0
    assert first["neuron", "warm"]["compilations"] == 0
    assert first["neuron", "cold"]["fallback"] == []
    columns = [line for line in lines if "eager_ms" in line]
    assert [line["column"] for line in columns] == ["portable", "host"]
    assert all(line["neuron_ms"] > 0 and line["inductor_ms"] > 0 for line in columns)
    (summary,) = [line for line in lines if line.get("contender") == "all"]
    assert summary["eager_peak_mb"] > 0 and summary["peak_against_eager"] > 0
