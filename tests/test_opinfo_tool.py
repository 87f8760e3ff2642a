"""The measuring tool itself: right rules pass, wrong ones are seen, exclusions are kept honest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import opinfo  # noqa: E402

# Replaces tanh's rule by one that is slightly wrong, then measures in this process.
WATERMARK = """
import dataclasses, sys
import torch
from torch_neuronx.lowering import table
rules = table.load_rules()
right = rules["aten::tanh"].function
rules["aten::tanh"] = dataclasses.replace(
    rules["aten::tanh"], function=lambda x: right(x) * 1.001
)
sys.path.insert(0, "tools")
import opinfo
sys.exit(opinfo.main())
"""

# Adds one to every result of every rule, or negates it, then measures in this process.
MARK_ALL = """
import sys
import jax.numpy as jnp
from torch_neuronx.lowering import build
right = build._Evaluator._checked
def marked(self, node, results):
    results = right(self, node, results)
    if node.op.startswith(("aten::any", "aten::all")):
        return results  # PyTorch's own C++ code counts on these two
    return tuple(~x if x.dtype == bool else x + jnp.ones((), x.dtype) for x in results)
build._Evaluator._checked = marked
sys.path.insert(0, "tools")
import opinfo
sys.exit(opinfo.main())
"""


def measure(
    results: Path,
    *arguments: str,
    code: str | None = None,
    environ: dict[str, str] | None = None,
    timeout: float = 550,
) -> subprocess.CompletedProcess[str]:
    command = ["-c", code] if code else ["tools/opinfo.py"]
    return subprocess.run(
        [sys.executable, *command, "--results", str(results), *arguments],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def in_process(folder: Path) -> dict[str, str]:
    """Rules are looked up in the process that changed them, and nothing is known of them yet."""
    return {
        "TORCH_NEURONX_LOWERING": "inprocess",
        "TORCH_NEURONX_CACHE_DIR": str(folder / "cache"),
    }


def outcomes(results: Path) -> dict[tuple[str, str], set[str]]:
    """Outcomes by (operator, kind)."""
    found: dict[tuple[str, str], set[str]] = {}
    for r in opinfo.read(results):
        if "outcome" in r:
            found.setdefault((r["op"], r["kind"]), set()).add(r["outcome"])
    return found


def test_some_operators_in_all_kinds_and_nothing_is_run_twice(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    chosen = (
        "--ops",
        "tanh,add,sort,kthvalue",
        "--dtypes",
        "float32,int64",
        "--budget",
        "1",
        "--jobs",
        "1",
    )
    done = measure(results, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    found = outcomes(results)
    assert {k for op, k in found if op == "add"} == {
        "forward", "backward", "forward_ad", "second", "noncontiguous", "out", "inplace",
    }  # fmt: skip
    assert found["kthvalue", "errors"] == {"passed"}
    assert set().union(*found.values()) <= {"passed", "skipped"}
    assert all("passed" in seen for seen in found.values())
    records = opinfo.read(results)
    native = {n for r in records for n in r.get("native", ())}
    assert {"aten::tanh", "aten::tanh_", "aten::add.out", "aten::sort"} <= native
    assert not any(r.get("fallback") for r in records)
    # Interrupted in the middle of a line: what is whole is kept, the rest is made again.
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:-4]) + lines[-4][:20] + "\n")
    assert measure(results, *chosen, "--resume").returncode == 0
    again = opinfo.read(results)
    assert again[: len(lines) - 4] == records[: len(lines) - 4]
    assert [opinfo._unit(r) for r in again if "done" in r] == [
        opinfo._unit(r) for r in records if "done" in r
    ]


def test_a_wrong_rule_is_seen(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    done = measure(
        results,
        *("--ops", "tanh,sinh", "--dtypes", "float32", "--kinds", "forward,inplace,out"),
        *("--jobs", "0", "--budget", "2"),
        code=WATERMARK,
        environ=in_process(tmp_path),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = outcomes(results)
    for kind in ("forward", "inplace", "out"):
        assert found["tanh", kind] == {"failed"}
        assert found["sinh", kind] == {"passed"}
    assert "tanh" in done.stdout.split("values")[-1]


def record(op: str, outcome: str, kind: str = "forward", **more: Any) -> dict[str, Any]:
    return {"op": op, "dtype": "float32", "kind": kind, "case": 0, "outcome": outcome, **more}


def excluded(op: str, dtype: str = "*") -> dict[str, str]:
    return {"op": op, "dtype": dtype, "kind": "forward", "reason": "why"}


def test_exclusions_are_counted_and_one_that_passes_is_an_error() -> None:
    records = [record("a", "failed"), record("a", "passed"), record("b", "passed")]
    assert opinfo.Report(records, []).status() == 1
    good = opinfo.Report(records, [excluded("a")])
    assert good.status() == 0
    assert good.table()["forward", "float32"] == {"excluded": 1, "passed": 2}
    stale = opinfo.Report(records, [excluded("a"), excluded("b")])
    assert stale.stale == [excluded("b")]
    assert stale.status() == 1
    # What was not measured says nothing about an exclusion.
    assert opinfo.Report(records, [excluded("a"), excluded("b", "int64")]).status() == 0
    with pytest.raises(SystemExit, match="reason"):
        opinfo.Report(records, [{"op": "a", "dtype": "*", "kind": "*", "reason": " "}])


def test_crashes_and_fallbacks_count_apart_and_causes_are_ranked() -> None:
    records = [
        record("a", "crashed", cause="worker died", detail="status -11"),
        record("b", "fallback", fallback=["aten::b"]),
        record("c", "failed", cause="raised TypeError", detail="size 3 at (1, 2)"),
        record("d", "failed", cause="raised TypeError", detail="size 14 at (0, 2)"),
    ]
    report = opinfo.Report(records, [])
    assert report.table()["forward", "float32"] == {"crashed": 1, "fallback": 1, "failed": 2}
    [first, second] = report.causes()
    assert (first[1], first[2]) == (2, ["c", "d"])
    assert second == ("worker died", 1, ["a"])
    assert "fell back: aten::b 1" in report.text(10)


def test_a_worker_that_dies_is_noticed_with_its_status() -> None:
    worker = opinfo._Worker()
    worker.process.kill()
    assert worker.receive(60) == "worker ended with status -9"
    worker.stop(kill=True)


def test_exclusions_of_the_repository_name_operators_and_reasons() -> None:
    import opinfo_cases as cases

    entries = json.loads(opinfo.EXCLUSIONS.read_text())
    opinfo.Report([], entries)
    for entry in entries:
        assert entry["op"] in {*cases.OPS, "*"}, entry
        assert entry["dtype"] in {*cases.DTYPES, "*"}, entry
        assert entry["kind"] in {*cases.KINDS, "*"}, entry


# Operators whose results, marked, are still right, or whose samples tell nothing.
MARK_UNSEEN = {
    "random": (
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
        "normal.in_place", "normal.number_mean", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "pca_lowrank", "rand_like",
        "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
    ),
    "undefined memory": ("empty_strided", "new_empty_strided", "resize_", "resize_as_"),
    "negated twice, or subtracted again": (
        "allclose", "equal", "isclose", "isfinite", "nn.functional.linear_cross_entropy",
        "nn.functional.tanhshrink",
    ),
    "empty results only": ("eye", "linspace", "nonzero_static"),
    "left alone": ("all", "any"),
    "so large that one is nothing": ("special.erfcx",),
}  # fmt: skip


@pytest.mark.full
def test_no_cpu_kernel_answers_in_place_of_a_rule(tmp_path: Path) -> None:
    """With every rule's results off by one, every operator that ran on the device is wrong."""
    results = tmp_path / "r.jsonl"
    done = measure(
        results,
        *("--dtypes", "float32", "--kinds", "forward", "--jobs", "0", "--budget", "3"),
        code=MARK_ALL,
        environ=in_process(tmp_path),
        timeout=5400,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    seen: set[str] = set()
    unseen: dict[str, set[str]] = {}
    for r in opinfo.read(results):
        if r.get("outcome") == "failed":
            seen.add(r["op"])
        elif r.get("outcome") == "passed" and r["native"]:
            unseen.setdefault(r["op"], set()).update(r["native"])
    allowed = {name for names in MARK_UNSEEN.values() for name in names}
    assert len(seen) > 500
    assert {op: native for op, native in unseen.items() if op not in seen | allowed} == {}
