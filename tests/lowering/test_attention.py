"""Rules of attention.py against CPU PyTorch."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.lowering.harness import check_both

from torch_neuronx.lowering import table
from torch_neuronx.lowering.philox import Stream

NAME = "aten::_scaled_dot_product_fused_attention_overrideable"


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


def options(dtype: torch.dtype) -> list[dict[str, Any]]:
    bias = torch.randn(2, 1, 5, 7, dtype=dtype)
    return [{}, {"attn_mask": bias}, {"scale": 0.3}, {"attn_mask": bias[:1, :, :1]}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_attention_for_cpu(dtype):
    q = torch.randn(2, 4, 5, 8, dtype=dtype)
    k, v = torch.randn(2, 4, 7, 8, dtype=dtype), torch.randn(2, 4, 7, 8, dtype=dtype)
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    for kwargs in [*options(dtype), {"is_causal": True}]:
        check_both(name, q, k, v, **kwargs)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **kwargs)
        rest = dict(kwargs)
        causal = rest.pop("is_causal", False)
        check_both(
            f"{name}_backward", torch.randn_like(out), q, k, v, out, lse, 0.0, causal, **rest
        )


def arrays(*xs: torch.Tensor | None) -> list[Any]:
    return [None if x is None else jnp.asarray(x.detach().numpy()) for x in xs]


def stream() -> Stream:
    return Stream(jnp.uint64(2**63 + 5), jnp.uint64(8))


def forward(q: Any, k: Any, v: Any, bias: Any = None, dropout: float = 0.0, causal: bool = False):
    rule = table.load_rules()[NAME].function
    with jax.enable_x64(True):
        out, lse, _, _, seed, offset, _ = rule(
            *arrays(q, k, v, bias), dropout, causal, False, None, rng=stream()
        )
    return out, lse, seed, offset


def backward(grad, q, k, v, bias, saved, dropout=0.0, causal=False):
    rule = table.load_rules()[f"{NAME}_backward"].function
    out, lse, seed, offset = saved
    with jax.enable_x64(True):
        return rule(
            *arrays(grad, q, k, v, bias), (True,) * 4, out, lse, None, None, q.shape[-2],
            k.shape[-2], dropout, causal, seed, offset, None,
        )  # fmt: skip


@pytest.mark.parametrize(("heads", "causal", "biased"), [
    (4, False, False), (4, True, False), (2, False, True), (1, True, False),
])  # fmt: skip
def test_fused_attention_and_gradients(heads, causal, biased):
    """CPU lacks this operator; autograd of scaled_dot_product_attention is the reference."""
    q = torch.randn(2, 4, 5, 8, requires_grad=True)
    k = torch.randn(2, heads, 7, 8, requires_grad=True)
    v = torch.randn(2, heads, 7, 6, requires_grad=True)
    bias = torch.randn(1, 4, 1, 7, requires_grad=True) if biased else None
    want = F.scaled_dot_product_attention(q, k, v, bias, 0.0, causal, enable_gqa=True)
    saved = forward(q, k, v, bias, 0.0, causal)
    np.testing.assert_allclose(saved[0], want.detach().numpy(), rtol=2e-5, atol=2e-5)
    grad = torch.randn_like(want)
    leaves = [x for x in (q, k, v, bias) if x is not None]
    expected = torch.autograd.grad(want, leaves, grad)
    got = backward(grad, q, k, v, bias, saved, 0.0, causal)
    assert (got[3] is None) == (bias is None)
    for a, b in zip(got, expected, strict=False):
        np.testing.assert_allclose(a, b.numpy(), rtol=5e-5, atol=5e-5)


def test_three_dimensions():
    q, k, v = (torch.randn(4, 5, 8) for _ in range(3))
    out, lse, _, _ = forward(q, k, v)
    assert out.shape == (4, 5, 8) and lse.shape == (1, 4, 5)
    np.testing.assert_allclose(
        out, F.scaled_dot_product_attention(q, k, v).numpy(), rtol=2e-5, atol=2e-5
    )


def test_rows_without_keys_give_zeros():
    q, k, v = (torch.randn(1, 1, 3, 4) for _ in range(3))
    bias = torch.zeros(1, 1, 3, 3)
    bias[0, 0, 1] = -math.inf
    saved = forward(q, k, v, bias)
    assert (np.asarray(saved[0])[0, 0, 1] == 0).all()
    assert all(np.isfinite(a).all() for a in backward(q, q, k, v, bias, saved)[:3])


def test_dropout_is_repeated_in_the_backward_pass():
    """Values of ones read the kept weights off the output; their gradient must use the same."""
    q, k = torch.randn(2, 3, 8, 4), torch.randn(2, 3, 16, 4)
    v = torch.eye(16).expand(2, 3, 16, 16).contiguous()
    plain = np.asarray(forward(q, k, v)[0])
    saved = forward(q, k, v, None, 0.25)
    dropped = np.asarray(saved[0])
    kept = dropped != 0
    assert 0.65 < kept.mean() < 0.85
    np.testing.assert_allclose(dropped[kept], plain[kept] / 0.75, rtol=1e-5)
    grad = torch.eye(8).expand(2, 3, 8, 8)
    grad = torch.cat([grad, torch.zeros(2, 3, 8, 8)], -1).contiguous()
    # d out[l, d] / d v[s, d] is the used weight of (l, s).
    grad_value = np.asarray(backward(grad, q, k, v, None, saved, 0.25)[2])
    np.testing.assert_allclose(
        grad_value[..., :8], np.swapaxes(dropped, -1, -2), rtol=1e-5, atol=1e-6
    )


def test_dropout_gradients_agree_with_autograd():
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    eye = torch.eye(6).expand(1, 2, 6, 6).contiguous()
    used = np.asarray(forward(q, k, eye, None, 0.5)[0])
    factors = torch.tensor((used != 0) * 2.0, dtype=torch.float32)
    want = (torch.softmax(q @ k.mT / 2, -1) * factors) @ v
    saved = forward(q, k, v, None, 0.5)
    np.testing.assert_allclose(saved[0], want.detach().numpy(), rtol=2e-5, atol=2e-5)
    grad = torch.randn_like(want)
    expected = torch.autograd.grad(want, (q, k, v), grad)
    for a, b in zip(backward(grad, q, k, v, None, saved, 0.5), expected, strict=False):
        np.testing.assert_allclose(a, b.numpy(), rtol=5e-5, atol=5e-5)
