"""Segment reductions: empty segments, initial values, ties, nan, offsets, batch dimensions."""

import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import check

REDUCTIONS = ["sum", "mean", "max", "min", "prod"]
NAN = float("nan")


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_lengths(reduce: str, initial: float | None) -> None:
    data = torch.tensor([[1.0, 0.0], [3.0, NAN], [3.0, 5.0], [0.0, 0.0], [-2.0, 0.0], [1.5, 4.0]])
    lengths = torch.tensor([3, 0, 2, 1])
    check("aten::segment_reduce", data, reduce, lengths=lengths, initial=initial)
    output = torch.segment_reduce(data, reduce, lengths=lengths, initial=initial)
    check(
        "aten::_segment_reduce_backward",
        torch.tensor([[1.0, -2.0], [0.5, 1.0], [-1.5, 2.0], [3.0, -1.0]]),
        output, data, reduce, lengths=lengths, initial=initial,
    )  # fmt: skip


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_offsets_along_an_inner_dimension(reduce: str) -> None:
    torch.manual_seed(0)
    data = torch.randn(2, 5, 3)
    offsets = torch.tensor([[0, 2, 2, 5], [0, 1, 4, 5]])
    check("aten::segment_reduce", data, reduce, offsets=offsets, axis=1)
    output = torch.segment_reduce(data, reduce, offsets=offsets, axis=1)
    check(
        "aten::_segment_reduce_backward",
        torch.randn_like(output), output, data, reduce, offsets=offsets, axis=1,
    )  # fmt: skip


def test_wrong_lengths() -> None:
    name = "aten::segment_reduce"
    check_error(name, torch.randn(4), "sum", lengths=torch.tensor([1, 2]))
    check_error(name, torch.randn(4), "sum", lengths=torch.tensor([-1, 5]))
