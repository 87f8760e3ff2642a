"""Padding modes and sliding blocks, with gradients."""

import pytest
import torch
from tests.lowering.harness import check

FLOATS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_padding(mode: str, n: int, dtype: torch.dtype) -> None:
    x = torch.arange(2 * 3 * 4**n).reshape(2, 3, *[4] * n).to(dtype)
    for padding in ([1, 2] * n, [3, 0] * n, [-1, 2] * n):
        check(f"aten::{mode}_pad{n}d", x, padding)
        if dtype.is_floating_point and min(padding) >= 0:
            padded = getattr(torch.ops.aten, f"{mode}_pad{n}d")(x, padding)
            grad = torch.arange(padded.numel()).reshape(padded.shape).remainder(7).to(dtype)
            check(f"aten::{mode}_pad{n}d_backward", grad, x, padding)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "dilation", "padding", "stride"),
    [
        ([2, 2], [1, 1], [0, 0], [1, 1]),
        ([3, 2], [1, 2], [1, 0], [2, 1]),
        ([1, 3], [2, 2], [0, 2], [3, 2]),
    ],
)
def test_sliding_blocks(
    kernel: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 7).to(dtype)
    check("aten::im2col", x, kernel, dilation, padding, stride)
    check("aten::im2col", x[0], kernel, dilation, padding, stride)
    columns = torch.ops.aten.im2col(x, kernel, dilation, padding, stride)
    check("aten::col2im", columns, [6, 7], kernel, dilation, padding, stride)
