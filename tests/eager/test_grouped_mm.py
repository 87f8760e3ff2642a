"""Grouped matrix products: groups of any size, also none, without reading their sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import Executables, assert_same, no_fallback, to_device

ENDS = [[4, 4, 24, 40], [0, 0, 0, 32], [10, 20, 30, 40]]
_generator = torch.Generator().manual_seed(11)


def _random(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, generator=_generator).to(dtype)


def _bounds(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


def reference(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """Group by group in float64, rounded once. Rows and columns of no group are zero."""
    dtype, a, b = a.dtype, a.double(), b.double()
    parts = list(enumerate(_bounds(ends)))
    if a.dim() == 2 and b.dim() == 3:
        result = torch.zeros(a.size(0), b.size(2), dtype=torch.float64)
        for g, (i, j) in parts:
            result[i:j] = a[i:j] @ b[g]
    elif a.dim() == 3 and b.dim() == 2:
        result = torch.zeros(a.size(1), b.size(1), dtype=torch.float64)
        for g, (i, j) in parts:
            result[:, i:j] = a[g] @ b[:, i:j]
    elif a.dim() == 2:
        result = torch.stack([a[:, i:j] @ b[i:j] for _, (i, j) in parts])
    else:
        result = a @ b
    return result.to(dtype)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((40, 16), (4, 16, 24)),
    "columns": ((4, 24, 16), (16, 40)),
    "contraction": ((16, 40), (40, 24)),
    "batches": ((4, 8, 16), (4, 16, 24)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_values(kind: str, dtype: torch.dtype) -> None:
    left, right = SHAPES[kind]
    a, b = _random(*left, dtype=dtype), _random(*right, dtype=dtype)
    for ends in ENDS if kind != "batches" else ENDS[:1]:
        offs = None if kind == "batches" else torch.tensor(ends, dtype=torch.int32)
        with no_fallback():
            got = torch._grouped_mm(a.to("neuron"), b.to("neuron"), offs=to_device(offs))
        assert_same(got, reference(a, b, ends))


def test_more_rows_than_a_tile() -> None:
    ends = [300, 301, 301, 640]
    a, b = _random(640, 8), _random(4, 8, 12)
    offs = torch.tensor(ends, dtype=torch.int32, device="neuron")
    assert_same(torch._grouped_mm(a.to("neuron"), b.to("neuron"), offs=offs), reference(a, b, ends))


def test_other_sizes_of_groups_compile_nothing() -> None:
    a, b = _random(40, 8).to("neuron"), _random(4, 8, 12).to("neuron")
    offs = [torch.tensor(ends, dtype=torch.int32).to("neuron") for ends in ENDS]
    torch._grouped_mm(a, b, offs=offs[0]).cpu()
    with Executables() as new:
        for other in offs:
            torch._grouped_mm(a, b, offs=other).cpu()
    assert new.count == 0


def test_gradients() -> None:
    """Those of a mixture of experts: rows of inputs, a weight for each group."""
    x, w = _random(40, 16, dtype=torch.bfloat16), _random(4, 16, 24, dtype=torch.bfloat16)
    results = []
    for device in ("cpu", "neuron"):
        inputs = [t.to(device, copy=True).requires_grad_() for t in (x, w)]
        offs = torch.tensor(ENDS[2], dtype=torch.int32, device=device)
        F.grouped_mm(*inputs, offs=offs).float().pow(2).sum().backward()
        results.append([t.grad for t in inputs])
    for got, want in zip(results[1], results[0], strict=True):
        assert want is not None
        assert_same(got, want, scale=float(want.abs().max()))


def test_refusals() -> None:
    offs = torch.tensor(ENDS[0], dtype=torch.int32)
    cases: list[tuple[Any, ...]] = [
        (_random(40, 16).double(), _random(4, 16, 24).double(), offs),
        (_random(40, 7), _random(4, 7, 24), offs),
        (_random(40, 16), _random(4, 16, 24), offs.long()),
        (_random(40, 16), _random(4, 8, 24), offs),
    ]
    for a, b, o in cases:
        for given in ((a, b, o), to_device((a, b, o))):
            with pytest.raises(RuntimeError):
                torch._grouped_mm(given[0], given[1], offs=given[2])


# --- fp8 with scales ---------------------------------------------------------------------------


def _fp8(*sizes: int) -> torch.Tensor:
    return _random(*sizes).to(torch.float8_e4m3fn)


def _scaled(
    kind: str, a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor, ends: list[int]
) -> torch.Tensor:
    a, b = a.float(), b.float()
    if kind == "contraction":
        plain = reference(a, b, ends)
        rows, columns = sa.reshape(len(ends), -1), sb.reshape(len(ends), -1)
        return (plain * rows[:, :, None] * columns[:, None, :]).bfloat16()
    return reference(a * sa[..., :, None], b * sb[..., None, :], ends).bfloat16()


SCALES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((40,), (4, 32)),
    "columns": ((4, 32), (40,)),
    "contraction": ((4 * 16,), (4 * 32,)),
    "batches": ((4, 8), (4, 32)),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", SCALES)
def test_scaled(kind: str, version: int) -> None:
    left = {"rows": (40, 16), "columns": (4, 32, 16), "contraction": (16, 48)}.get(kind, (4, 8, 16))
    right = {"rows": (4, 16, 32), "columns": (16, 48), "contraction": (48, 32)}.get(
        kind, (4, 16, 32)
    )
    a, b = _fp8(*left), _fp8(*right).transpose(-1, -2).contiguous().transpose(-1, -2)
    sizes = dict(SCALES)
    sizes["columns"] = ((4, 32), (48,))
    sa, sb = (torch.rand(*s, generator=_generator) + 0.5 for s in sizes[kind])
    offs = None if kind == "batches" else torch.tensor(ENDS[0], dtype=torch.int32)
    with no_fallback():
        ad, bd, sad, sbd = (to_device(t) for t in (a, b, sa, sb))
        if version == 1:
            got = torch._scaled_grouped_mm(ad, bd, sad, sbd, offs=to_device(offs))
        else:
            row_wise = F.ScalingType.RowWise
            got = F.scaled_grouped_mm(ad, bd, sad, row_wise, sbd, row_wise, offs=to_device(offs))
    assert_same(got, _scaled(kind, a, b, sa, sb, ENDS[0]))
