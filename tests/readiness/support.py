"""What the tests of whole runs share: a pilot's text, its run in a process, its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "readiness"

PLAIN = """
import os, socket, time, torch

def model():
    return torch.nn.Linear(4, 4)

def inputs(split):
    return [torch.ones(2, 4)] if split == "requests" else []
"""


def run(
    pilot: Path, out: Path, *arguments: str, timeout_s: float = 600, **environ: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and record of one run; whatever happens there is a record."""
    command = [sys.executable, "-m", "neuron_readiness.cli", "run", str(pilot), "--out", str(out)]
    done = subprocess.run(
        [*command, "--quiet", "--repeats", "8", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    record = out / "record.json"
    assert record.is_file(), f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.returncode, json.loads(record.read_text())


def run_text(
    folder: Path, text: str, *arguments: str, **environ: str
) -> tuple[int, dict[str, Any]]:
    """As ``run``, for a pilot given as text."""
    pilot = folder / "pilot.py"
    pilot.write_text(text)
    return run(pilot, folder / "record", *arguments, **environ)
