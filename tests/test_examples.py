"""The examples run as the README says, and what they report holds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Summation order alone moves a loss by about 1e-6; a wrong epsilon in the optimizer moves a step's
# loss by over 1e-5, and a wrong gradient by far more.
STEP_TOLERANCE = 1e-5


def run_example(name: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that an example writes; its exit status must be 0."""
    output = tmp_path / "report.json"
    command = [sys.executable, str(EXAMPLES / name), "--output", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(output.read_text())


def test_gpt_trains_on_the_device_as_on_the_cpu(tmp_path: Path) -> None:
    report = run_example("train_gpt.py", tmp_path, "--steps", "12")
    losses = report["modes"]["cpu"]["losses"]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.2  # it does learn
    for mode in ("eager", "compiled"):
        result = report["modes"][mode]
        assert result["fallback"] == []
        assert len(result["native"]) > 5
        assert result["compile_events"]
        differences = [abs(a - b) for a, b in zip(result["losses"], losses, strict=True)]
        assert max(differences) <= STEP_TOLERANCE, differences


@pytest.mark.clients
def test_pretrained_sentence_embeddings_agree_with_the_cpu(tmp_path: Path) -> None:
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.fail("the clients extra is not installed: make test-full installs it")
    report = run_example("sentence_embeddings.py", tmp_path)
    for mode in ("eager", "compiled"):
        result = report["modes"][mode]
        assert result["fallback"] == []
        comparison = result["against_cpu"]
        assert comparison["min_cosine"] >= 0.99999
        assert comparison["misplaced_neighbours"] == 0
