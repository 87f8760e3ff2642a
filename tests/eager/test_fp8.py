"""Conversions to and from fp8 are CPU's: e4m3fn saturates, the others overflow. e4m3fn saturates at
the largest value of the target's format: 240 on trn2, 448 on trn3 and host."""

from __future__ import annotations

import pytest
import torch
from tests.support import run_python

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
    if name == "float8_e4m3fn":  # the default target is trn2
        expected = expected.float().clamp(-240, 240).to(dtype)
    got = x.to("neuron").to(dtype)
    assert torch.equal(got.float().cpu().nan_to_num(123.0), expected.float().nan_to_num(123.0))


def test_bytes_beyond_the_targets_range_are_kept() -> None:
    x = torch.tensor([448.0, -256.0, 239.0]).to(torch.float8_e4m3fn)
    y = x.to("neuron")
    assert torch.equal(y.clone().cpu().view(torch.uint8), x.view(torch.uint8))
    assert y.float().tolist() == [448.0, -256.0, 240.0]


@pytest.mark.parametrize("target", ["trn3", "host"])
def test_other_targets_hold_448(target: str) -> None:
    code = """
import torch
x = torch.tensor([300.0, 1e6], device="neuron")
convert = lambda x: x.to(torch.float8_e4m3fn).float()
print(convert(x).tolist(), torch.compile(convert, backend="neuron")(x).tolist())
"""
    done = run_python(code, TORCH_NEURONX_TARGET=target)
    assert done.stdout.split("\n")[0] == "[288.0, 448.0] [288.0, 448.0]", done.stderr
    assert "saturate" not in done.stderr


def test_saturation_is_said_once_and_holds_in_compiled_graphs() -> None:
    code = """
import torch
x = torch.tensor([300.0, 1e6], device="neuron")
convert = lambda x: x.to(torch.float8_e4m3fn).float()
print(convert(x).tolist(), convert(x[:1] + 0).tolist())
print(torch.compile(convert, backend="neuron")(x).tolist())
"""
    done = run_python(code, TORCH_NEURONX_TARGET="trn2")
    assert done.stdout.splitlines() == ["[240.0, 240.0] [240.0]", "[240.0, 240.0]"], done.stderr
    assert done.stderr.count("saturate at 240") == 1
