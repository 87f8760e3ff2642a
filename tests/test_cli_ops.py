"""``torchneuron ops``: the table of operators on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def ops(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_neuronx.cli", "ops", *arguments],
        # No plugin exists: were a device started, it would fail.
        env={**os.environ, "TORCH_NEURONX_PJRT_PLUGIN": "/nowhere/plugin.so"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_counts_by_status() -> None:
    counts = {w[0]: int(w[1]) for w in map(str.split, ops().stdout.splitlines())}
    assert counts.keys() == {"native", "composite", "fallback", "unsupported"}
    rows = [json.loads(line) for line in ops("--json").stdout.splitlines()]
    assert sum(counts.values()) == len(rows)
    for status, count in counts.items():
        assert count == sum(r["status"] == status for r in rows)


def test_one_operator_by_any_of_its_names() -> None:
    texts = {ops(name).stdout for name in ("add", "aten::add", "aten::add.Tensor", "add_")}
    [text] = texts
    lines = text.splitlines()
    assert lines[0] == "aten::add: native"
    assert "float32" in lines[1] and lines[1].startswith("  measured:")
    assert "    aten::add_.Tensor: native" in lines


def test_part_of_a_name_lists_and_an_unknown_one_fails() -> None:
    listed = ops("avg_pool").stdout.splitlines()
    assert {line.split()[0] for line in listed} >= {"aten::avg_pool2d", "aten::avg_pool2d_backward"}
    done = ops("no_such_operator")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no_such_operator" in done.stderr
