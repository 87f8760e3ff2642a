"""What a claim can be held against: the model's identity and what was fed to it."""

from __future__ import annotations

import math

import torch

from neuron_readiness.pilot import Case
from neuron_readiness.recording import inputs


def test_a_model_is_known_by_its_weights() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    facts = inputs.identity(model)
    assert facts["class"].endswith("Sequential") and facts["parameters"] == 2 * 3 + 3 + 3 + 3
    assert facts["dtypes"] == {"float32": 21, "int64": 1}  # buffers too
    again = inputs.identity(model)["sha256"]
    assert again == facts["sha256"]
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-6
    assert inputs.identity(model)["sha256"] != again


def test_every_dtype_of_weights_has_a_hash() -> None:
    model = torch.nn.Linear(2, 2)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn):
        assert inputs.identity(model.to(dtype))["sha256"]
    assert inputs.identity(lambda x: x)["sha256"] is None


def test_the_distribution_of_a_case() -> None:
    x = torch.tensor([0.0, 2.0, 4.0, math.inf])
    case = Case("a", (x, [torch.tensor([3, 5])]), {"mask": torch.tensor([True])}, frequency=0.5)
    first, second, third = inputs.distribution(case)
    assert (first["input"], first["group"], first["frequency"]) == ("args[0]", "ordinary", 0.5)
    assert (first["least"], first["largest"], first["mean"]) == (0.0, 4.0, 2.0)
    assert (first["zeros"], first["not_finite"]) == (0.25, 1)
    assert (second["input"], second["dtype"], second["spread"]) == ("args[1][0]", "int64", 1.0)
    assert third["input"] == "mask"


def test_an_empty_tensor_has_no_range() -> None:
    [row] = inputs.distribution(Case("none", (torch.ones(0, 3),), hard=True))
    assert row["group"] == "hard" and row["least"] is None and row["zeros"] is None
