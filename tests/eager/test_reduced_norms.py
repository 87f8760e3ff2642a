"""Norms of reduced floats: their statistics are float32, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (6,), w, w),
    "group_norm": lambda x, w: F.group_norm(x.mT, 2, w, w),
    "batch_norm": lambda x, w: F.batch_norm(x.mT, None, None, w, w, training=True),
    "instance_norm": lambda x, w: F.instance_norm(x.mT, weight=w, bias=w),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values, weight = torch.randn(3, 4, 6), torch.randn(6)
    grads = []
    # CPU in float32 on the same rounded inputs: each of its reduced results rounds more often.
    for device, computed in (("cpu", torch.float32), ("neuron", dtype)):
        x, w = (
            t.to(dtype).to(computed).clone().to(device).requires_grad_() for t in (values, weight)
        )
        result = CALLS[name](x, w)
        seed = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(dtype)
        found = torch.autograd.grad(result, (x, w), seed.to(computed).to(device))
        assert all(g.dtype == computed for g in found)
        grads.append([g.cpu().float() for g in found])
    for got, want in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
