"""A training job that is killed and resumed: what is judged, and what the child really does."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_readiness import exits
from neuron_readiness.context import Context, Options
from neuron_readiness.pilot import load
from neuron_readiness.run import launching, training
from neuron_readiness.run.child import ChildFailed
from neuron_readiness.stages import operations
from readiness.support import run_text

JOB = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

def inputs(split):
    x = torch.arange(24.0).view(6, 4) / 24
    return [(row[None],) for row in x]

def train_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
FORGETS_RNG = """
def save_checkpoint(path, model, optimizer, position):
    torch.save([model.state_dict(), optimizer.state_dict(), position], path)

def load_checkpoint(path, model, optimizer):
    weights, state, position = torch.load(path)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return position
"""
FORGETS_POSITION = FORGETS_RNG.replace("    return position\n", "")


class Killed(BaseException):
    """Instead of SIGKILL, so that this process goes on."""


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Killed

    monkeypatch.setattr(training.os, "kill", raise_)


def recovered(folder: Path, text: str) -> dict[str, Any]:
    """The judgement of one job, run in this process on the CPU."""
    pilot = folder / "pilot.py"
    pilot.write_text(text)
    context = Context(pilot, Options(device="cpu"), folder)
    common = {"steps": 6, "checkpoint": str(folder / "checkpoint")}

    def go(name: str, **more: Any) -> list[dict[str, Any]]:
        path = folder / f"{name}.jsonl"
        torch.manual_seed(hash(name) % 1000)  # what a process of its own would start with
        try:
            training.train(context, 0.0, **common, journal=str(path), **more)
        except Killed:
            pass
        return [json.loads(line) for line in path.read_text().splitlines()]

    journals = {
        "whole": go("whole"),
        "killed": go("killed", save_after=3, kill_after=4),
        "resumed": go("resumed", resume=True),
    }
    return operations.judge(journals, 3, 6)


@pytest.mark.usefixtures("kill")
def test_a_complete_checkpoint_resumes_the_same_job(tmp_path: Path) -> None:
    facts = recovered(tmp_path, JOB)
    assert facts["not_restored"] == []
    assert facts["same_trajectory"] and facts["same_final_model"]
    assert (facts["repeated_samples"], facts["skipped_samples"]) == (0, 0)
    assert facts["lost_steps"] == 1


@pytest.mark.usefixtures("kill")
def test_a_forgotten_random_state_is_named(tmp_path: Path) -> None:
    facts = recovered(tmp_path, JOB + FORGETS_RNG)
    assert facts["not_restored"] == ["rng"]
    assert not facts["same_trajectory"]
    assert (facts["repeated_samples"], facts["skipped_samples"]) == (0, 0)


@pytest.mark.usefixtures("kill")
def test_a_forgotten_position_repeats_samples(tmp_path: Path) -> None:
    facts = recovered(tmp_path, JOB + FORGETS_POSITION)
    assert "position" in facts["not_restored"]
    assert facts["repeated_samples"] == 3


@pytest.mark.usefixtures("kill")
def test_a_wrong_position_skips_samples(tmp_path: Path) -> None:
    facts = recovered(tmp_path, JOB + FORGETS_RNG.replace("return position", "return position + 2"))
    assert facts["skipped_samples"] == 2


LAUNCH = """
import json, time, torch

def model():
    return torch.nn.Linear(1, 1)

def inputs(split):
    return [torch.ones(1, 1)]

world_size = 2

def launch(rank, world_size, folder, resume, step_done):
    import torch.distributed as dist
    from datetime import timedelta
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    state = folder / "state.json"
    first, total = json.loads(state.read_text()) if resume else (0, 0.0)
    for step in range(first, 5):
        value = torch.tensor([float(step + rank)])
        dist.all_reduce(value)
        total += value.item()
        if rank == 0:
            state.write_text(json.dumps([step + 1, total]))
        step_done(step)
    dist.destroy_process_group()
    return {"total": total}
"""


@pytest.mark.full
def test_a_distributed_job_that_loses_a_rank_restarts(tmp_path: Path) -> None:
    from neuron_readiness.evidence import StageResult
    from neuron_readiness.recording import ranks

    pilot = tmp_path / "pilot.py"
    pilot.write_text(LAUNCH)
    result = StageResult("operations", "")
    facts = ranks.examine(result, Context(pilot, Options(device="cpu"), tmp_path))
    assert facts["ranks_agree"] and facts["restart_agrees"]
    assert facts["survivors"] == ["noticed"]
    assert facts["failed"] == 0
    assert 0 < facts["communication_share"] <= 1


class Answers:
    """Ranks whose restart raises."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, context: Any, world: int, folder: str, resume: bool) -> list[Any]:
        self.calls += 1
        if resume:
            raise ChildFailed('launch exit 1: ValueError: no state\nFile "/p.py", line 3', 1)
        return [{"answer": {"loss": 1.0}, "seconds": 1.0, "communication_s": None}] * world


def test_a_restart_that_fails_keeps_what_the_whole_run_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuron_readiness.evidence import StageResult
    from neuron_readiness.recording import ranks

    monkeypatch.setattr(ranks, "_answers", Answers())
    monkeypatch.setattr(ranks, "_killed", lambda *_: ["noticed"])
    pilot = tmp_path / "pilot.py"
    pilot.write_text(LAUNCH)
    context = Context(pilot, Options(device="cpu"), tmp_path)
    context.pilot_path = Path("/p.py")
    context.pilot = load(pilot)
    result = StageResult("operations", "")
    facts = ranks.examine(result, context)
    assert facts["ranks_agree"] and facts["restart_agrees"] is False
    assert facts["survivors"] == ["noticed"] and facts["failed"] == 1
    [fault] = result.faults
    assert (fault.kind, fault.side) == ("pilot-raised", "workload")
    assert [f.gate for f in result.findings] == ["restart"] and "no state" in fault.text


@pytest.mark.full
def test_a_checkpoint_that_cannot_be_saved_is_the_reason_that_is_told(tmp_path: Path) -> None:
    text = JOB + FORGETS_RNG.replace(
        "    torch.save", "    raise OSError('no such bucket')\n    torch.save"
    )
    arguments = ("--device", "cpu", "--only", "operations")
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    code, record = run_text(tmp_path, text, *arguments, **environ)
    assert code == exits.FAULTS["pilot-raised"]
    assert "no such bucket" in record["faults"][0]["text"]
    recovery = record["items"]["operations"]["facts"]["recovery"]
    assert (recovery["failed"], recovery["side"]) == (1, "workload")
    assert record["decision"]["verdict"] == "keep"


def test_collectives_at_the_same_time_count_once() -> None:
    assert launching.covered([(5.0, 7.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.6)]) == 5.0
    assert launching.covered([]) == 0.0
