"""Conversions to and from fp8 are CPU's: e4m3fn saturates, the others overflow."""

from __future__ import annotations

import pytest
import torch

VALUES = [0.0, 1.5, -3.3, 239.0, 300.0, 448.0, 465.0, 500.0, 57344.0, 62000.0, 1e6, 1e-10]
VALUES += [-500.0, float("inf"), float("-inf"), float("nan")]
DTYPES = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_conversion_both_ways(name: str, source: torch.dtype) -> None:
    dtype = getattr(torch, name)
    finite = [v for v in VALUES if v == v and abs(v) < 1e9]
    x = torch.tensor(finite if source == torch.int32 else VALUES).to(source)
    expected = x.to(dtype)
    got = x.to("neuron").to(dtype)
    assert torch.equal(got.float().cpu().nan_to_num(123.0), expected.float().nan_to_num(123.0))
