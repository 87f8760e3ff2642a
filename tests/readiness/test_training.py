"""A pilot that only trains: its steps are what is compared, followed and timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_readiness.context import Context, Options
from neuron_readiness.pilot import PilotError, load
from neuron_readiness.run import serving
from neuron_readiness.stages import correctness, execution, profile

JOB = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

def inputs(split):
    if split == "train":
        x = torch.linspace(-1, 1, 24).view(2, 3, 4)
        return [(rows, torch.arange(3) % 2) for rows in x]

def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""
ON_HOST = JOB.replace("    return loss\n", "    torch.dequantize(x.detach())\n    return loss\n")


def context(folder: Path, text: str) -> Context:
    path = folder / "pilot.py"
    path.write_text(text)
    return Context(path, Options(repeats=4, train_steps=3), folder)


def test_gradients_are_those_that_a_step_leaves(tmp_path: Path) -> None:
    facts = correctness.run(context(tmp_path, JOB)).facts
    assert facts["gradients"]["parameters"] == 4
    assert facts["gradients"]["failed"] == 0
    assert facts["trajectory"]["failed"] == 0 and facts["trajectory"]["comparable"]
    assert "ordinary" not in facts  # there are no requests whose outputs could differ


def test_a_step_that_differs_on_the_device_is_told(tmp_path: Path) -> None:
    text = JOB.replace("    loss.backward()", "    (loss * (1 + 0.1 * x.is_neuron)).backward()")
    result = correctness.run(context(tmp_path, text))
    assert result.facts["gradients"]["failed"] == 4
    # AdamW hides the scale of a gradient from the losses, so that these do not tell.
    assert {f.gate for f in result.findings} == {"gradients"}


def test_a_host_operator_of_the_step_is_found(tmp_path: Path) -> None:
    facts = execution.run(context(tmp_path, ON_HOST)).facts
    assert [h["overload"] for h in facts["host_operators"]] == ["aten::dequantize.self"]
    assert facts["host_operators"][0]["cases"] == ["train-0", "train-1"]
    assert facts["host_operators"][0]["traffic_share"] == 1.0


def test_an_optimizer_that_counts_on_the_host_runs_on_the_device(tmp_path: Path) -> None:
    assert execution.run(context(tmp_path, JOB)).facts["host_operators"] == []


def test_times_are_those_of_steps(tmp_path: Path) -> None:
    job = context(tmp_path, JOB)
    served = serving.serve(job, 0.0, "reference")
    assert served["unit"] == "step" and served["failed"] == 0
    said = [s.text for s in profile.run(job).statements]
    assert any(text.startswith("steady step: ") for text in said)
    assert any("1 steps of case" in text for text in said)


def test_comparing_keeps_the_weights(tmp_path: Path) -> None:
    job = context(tmp_path, JOB)
    before = {n: t.clone() for n, t in job.pair[0].parameters().items()}
    job.pair[0].request(job.pilot.cases("train")[0])
    after = job.pair[0].parameters()
    assert all(bool((after[n] == t).all()) for n, t in before.items())


def test_a_workload_that_writes_to_its_inputs_repeats_itself(tmp_path: Path) -> None:
    text = JOB.replace('split == "train"', 'split == "requests"').replace(
        "(rows, torch.arange(3) % 2)", "(rows,)"
    )
    text += "def preprocess(x):\n    return (x.mul_(2),), {}\n"
    text += "def forward(model, x):\n    x += 1\n    return model(x)\n"
    job = context(tmp_path, text)
    facts = correctness.run(job).facts
    assert facts["repeatable"] and facts["ordinary"]["failed"] == 0
    [case, _] = job.pilot.cases("requests")
    first = job.pair[1].output(case)
    assert bool((job.pair[1].output(case) == first).all())


def test_neither_requests_nor_steps_is_no_pilot(tmp_path: Path) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(JOB.replace("def train_step", "def other"))
    with pytest.raises(PilotError, match="at least one, or a `train_step`"):
        load(path).cases("requests")
