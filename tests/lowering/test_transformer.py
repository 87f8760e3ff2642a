"""Masked softmax in its mask types, and the split of a joint projection."""

import pytest
import torch
from tests.lowering.harness import check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "kind"), [((4, 4), 0), ((2, 4), 1), ((2, 3, 4, 4), 2)])
def test_masked_softmax(shape: tuple[int, ...], kind: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4).to(dtype)
    mask = torch.rand(shape) < 0.5
    mask[1] = True  # nothing left: nan
    check("aten::_masked_softmax", x, mask, None, kind)


@pytest.mark.parametrize("dim", [None, -1, 1])
def test_masked_softmax_backward(dim: int | None) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(3, 4, 5), torch.rand(3, 4, 5) < 0.4
    check("aten::_masked_softmax", x, mask, dim, 2)
    y = torch._masked_softmax(x, mask, dim, 2)
    check("aten::_masked_softmax_backward", torch.randn_like(y), y, mask, dim)


def test_joint_projection() -> None:
    torch.manual_seed(0)
    check("aten::_transform_bias_rescale_qkv", torch.randn(2, 3, 24), torch.randn(24), 4)
