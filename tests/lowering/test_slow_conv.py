"""Convolutions under their other names, with and without a batch."""

import pytest
import torch
from tests.lowering.harness import check

_LOOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("n", [2, 3])
def test_transposed(n: int) -> None:
    torch.manual_seed(n)
    x, w, b = torch.randn(2, 3, *[4] * n), torch.randn(3, 2, *[3] * n), torch.randn(2)
    name = f"aten::slow_conv_transpose{n}d"
    check(name, x, w, [3] * n, b, [2] * n, [1] * n, [1] * n, [1] * n, **_LOOSE)
    check(name, x[0], w, [3] * n, None, [1] * n, [0] * n, [0] * n, [2] * n, **_LOOSE)


@pytest.mark.parametrize("n", [2, 3])
def test_dilated(n: int) -> None:
    torch.manual_seed(n)
    x, w, b = torch.randn(2, 3, *[6] * n), torch.randn(4, 3, *[2] * n), torch.randn(4)
    name = f"aten::slow_conv_dilated{n}d"
    check(name, x, w, [2] * n, b, [2] * n, [1] * n, [2] * n, **_LOOSE)
    check(name, x[0], w, [2] * n, None, [1] * n, [0] * n, [3] * n, **_LOOSE)


def test_plain() -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 2), torch.randn(4)
    rest = ([3, 2], b, [2, 1], [1, 0])
    check("aten::_slow_conv2d_forward", x, w, *rest, **_LOOSE)
    grad = torch.randn_like(torch.ops.aten._slow_conv2d_forward(x, w, *rest))
    for mask in ([True, True, True], [False, True, False]):
        check(
            "aten::_slow_conv2d_backward.output_mask",
            grad, x, w, [3, 2], [2, 1], [1, 0], mask, **_LOOSE,
        )  # fmt: skip
