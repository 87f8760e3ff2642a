"""The count of the dense operator surface, and that what it calls native is registered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def test_report() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/operator_surface.py"), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    report = json.loads(done.stdout)
    if torch.__version__.startswith("2.13"):
        assert report["total"] == 629
    assert report["native"] + len(report["missing"]) == report["total"]
    assert sum(f["total"] for f in report["families"].values()) == report["total"]
    assert sum(f["native"] for f in report["families"].values()) == report["native"]
    # 615 had kernels when this was written: none may be lost.
    assert report["native"] >= 615
    for lost in ("aten::grid_sampler_2d", "aten::_ctc_loss", "aten::_embedding_bag"):
        assert lost not in report["missing"]
    argued = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/operator_surface.md").read_text(), re.M)
    assert sorted(argued) == sorted(n.removeprefix("aten::") for n in report["missing"])

    # Every _foreach_* (147), _fused_* of the optimisers (8) and _amp_* (2).
    training = report["training forms"]
    if torch.__version__.startswith("2.13"):
        assert training["total"] == 157
    assert training["native"] == training["total"]


def test_the_text_ends_with_what_was_measured() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/operator_surface.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    totals = json.loads((ROOT / "docs/opinfo_summary.json").read_text())["totals"]
    executed = sum(
        n for d in totals.values() for c in d.values() for o, n in c.items() if o != "skipped"
    )
    passed = sum(c.get("passed", 0) for d in totals.values() for c in d.values())
    kind, *counts = done.stdout.splitlines()[-1].split()
    assert (kind, counts[:2]) == ("all", [str(executed), str(passed)])
