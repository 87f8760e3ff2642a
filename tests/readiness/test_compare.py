"""Differences and tolerances: what passes, what fails, and where the allowance comes from."""

from __future__ import annotations

import math

import pytest
import torch

from neuron_readiness.recording import tolerance
from neuron_readiness.recording.compare import compare, compare_all
from neuron_readiness.recording.tolerance import Tolerance

EXACT = Tolerance(0.0, 0.0, "default", "equality")
LOOSE = Tolerance(1e-3, 1e-3, "given", "for a test")


def test_equal_tensors_are_within_zero_tolerance() -> None:
    x = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    row = compare(x.clone(), x, EXACT, "x")
    assert row.within and row.worst == 0.0
    assert (row.nan_device, row.nan_reference) == (1, 1)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])),
        (torch.tensor([math.inf]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.inf])),
        (torch.tensor([math.inf]), torch.tensor([-math.inf])),
        (torch.tensor([1.01]), torch.tensor([1.0])),
        (torch.tensor([1]), torch.tensor([2])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2, dtype=torch.float64), torch.ones(2)),
    ],
)
def test_differences_fail(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert not compare(actual, expected, LOOSE, "x").within


def test_worst_counts_tolerances() -> None:
    row = compare(torch.tensor([1.004]), torch.tensor([1.0]), LOOSE, "x")
    assert row.worst == pytest.approx(2.0, rel=1e-3)
    assert row.max_abs == pytest.approx(0.004, rel=1e-3)


def test_nested_outputs_are_matched_by_path() -> None:
    expected = {"logits": torch.ones(2), "states": (torch.zeros(1), torch.zeros(1))}
    actual = {"logits": torch.ones(2), "states": (torch.zeros(1),), "more": torch.ones(1)}
    rows = {r.name: r for r in compare_all(actual, expected, lambda *_: EXACT)}
    assert rows["output.logits"].within and rows["output.states[0]"].within
    assert rows["output.states[1]"].problem == "missing on the device"
    assert rows["output.more"].problem == "missing on the reference"


def test_tolerance_is_derived_from_dtype_reduction_and_depth() -> None:
    short = torch.nn.Linear(16, 2)
    long = torch.nn.Linear(1024, 2)
    deep = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    x = torch.ones(8)
    base = tolerance.derived(x, short)
    assert base.provenance == "derived"
    assert "sqrt(16 terms)" in base.why and "float32" in base.why
    assert tolerance.derived(x, long).rtol == pytest.approx(8 * base.rtol)
    assert tolerance.derived(x, deep).rtol == pytest.approx(2 * base.rtol)
    wide = tolerance.derived(x.bfloat16(), short)
    assert wide.rtol == pytest.approx(base.rtol * 2**16)
    assert tolerance.derived(torch.ones(3, dtype=torch.int64), short).atol == 0.0
    assert tolerance.derived(x, None).provenance == "default"


def test_a_given_tolerance_keeps_its_reason() -> None:
    stated = tolerance.given({"output": {"rtol": 0.1, "why": "the client rounds"}}, "output")
    assert stated == Tolerance(0.1, 0.0, "given", "the client rounds")
    assert tolerance.given({}, "output") is None
