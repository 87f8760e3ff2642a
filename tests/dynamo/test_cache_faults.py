"""Compiled functions beside a cache that is damaged, foreign, full, unusable or fought over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import run_python
from torch_neuronx.compiler.cache import encode_entry

pytestmark = pytest.mark.full  # a dozen processes

CODE = """
import json, os, resource, signal
import torch, torch_neuronx
from torch_neuronx.compiler import ledger, session
if os.environ.get("FULL"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
if os.environ.get("DIES"):
    backend = session.compiler().backend
    backend.compile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run = torch.compile(lambda x: (x.sin() @ x).softmax(-1), backend="neuron")
x = torch.arange(9.0).reshape(3, 3)
y = run(x.to("neuron"))
assert torch.allclose(y.cpu(), (x.sin() @ x).softmax(-1))
session.compiler().drain()
print(json.dumps([s.source for g in ledger.graphs() for s in g.specialisations]))
"""


def run(root: Path, **environ: str) -> tuple[list[str], str]:
    """Where the graph's executable came from, and what was written to standard error."""
    done = run_python(CODE, TORCH_NEURONX_CACHE_DIR=str(root), **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def entries(root: Path, *levels: str) -> list[Path]:
    return sorted(p for level in levels for p in (root / level).rglob("*") if p.is_file())


def test_damaged_and_foreign_entries_are_compiled_again(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    assert run(root)[0] == ["compiled"]
    damaged = entries(root, "op", "hlo")
    assert damaged
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    sources, said = run(root)
    assert sources == ["compiled"] and "corrupt" in said
    assert run(root)[0] == ["l1"]
    # Whole entries of somebody else.
    for path in entries(root, "op"):
        path.write_bytes(encode_entry(path.name, {"name": "x"}, b""))
    for path in entries(root, "hlo"):
        path.write_bytes(encode_entry(path.name, {"name": "x"}, b"no executable"))
    sources, said = run(root)
    assert sources == ["compiled"] and "it does not describe an executable" in said
    assert run(root)[0] == ["l1"]
    for path in entries(root, "hlo"):
        path.write_bytes(encode_entry(path.name, {"name": "x"}, b"no executable"))
    sources, said = run(root)
    assert sources == ["compiled"] and "the plugin does not load it" in said
    assert run(root)[0] == ["l1"]


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no directory")
    sources, said = run(file / "cache")
    assert sources == ["compiled"] and str(file) in said
    sources, said = run(tmp_path / "full", FULL="1")
    assert sources == ["compiled"] and "cache" in said
    assert entries(tmp_path / "full", "op", "hlo") == []
    assert run(tmp_path / "full")[0] == ["compiled"]


def test_a_process_killed_while_it_compiles_leaves_nothing_behind(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    done = run_python(CODE, TORCH_NEURONX_CACHE_DIR=str(root), DIES="1")
    assert done.returncode == -signal.SIGKILL
    assert entries(root, "op", "hlo") == []
    assert run(root)[0] == ["compiled"]


def test_of_two_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    environ = {**os.environ, "TORCH_NEURONX_CACHE_DIR": str(tmp_path / "cache")}
    pair: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", CODE], env=environ, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    found = []
    for process in pair:
        output, _ = process.communicate()
        assert process.returncode == 0
        found += json.loads(output.splitlines()[-1])
    assert found.count("compiled") == 1 and set(found) <= {"compiled", "l1", "l2"}
