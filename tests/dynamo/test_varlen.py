"""Packed sequences: torch.nn.attention.varlen, eager and compiled, equals attention one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from support import assert_same, no_fallback, to_device

ENDS = (0, 3, 3, 10)  # lengths 3, 0 and 7


def one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    parts = [
        F.scaled_dot_product_attention(
            *(t[a:b].transpose(0, 1)[None] for t in (q, k, v)), is_causal=causal
        )[0].transpose(0, 1)
        for a, b in itertools.pairwise(ENDS)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("causal", "kv_heads"), [(True, 2), (False, 1)])
def test_forward_and_gradients(compiled: bool, causal: bool, kv_heads: int) -> None:
    shapes = [(10, 2, 8), (10, kv_heads, 8), (10, kv_heads, 8)]
    inputs = [torch.randn(s, requires_grad=True) for s in shapes]
    moved = to_device(inputs)
    ends = torch.tensor(ENDS, dtype=torch.int32)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        window = (-1, 0) if causal else (-1, -1)
        return varlen_attn(q, k, v, ends, ends, 7, 7, window_size=window, enable_gqa=kv_heads != 2)

    function = torch.compile(run, backend="neuron", fullgraph=True) if compiled else run
    expected = one_by_one(*inputs, causal)
    with no_fallback():
        actual = function(*moved, ends.to("neuron"))
        actual.square().sum().backward()
    expected.square().sum().backward()
    assert_same(actual, expected)
    for a, e in zip(moved, inputs, strict=True):
        assert_same(a.grad, e.grad)


def test_window_counts_from_the_query() -> None:
    q, k, v = (torch.randn(6, 1, 4) for _ in range(3))
    ends = torch.tensor([0, 6], dtype=torch.int32)
    moved = to_device([q, k, v, ends])
    actual = varlen_attn(*moved[:3], moved[3], moved[3], 6, 6, window_size=(2, 1))
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    mask = (distance >= -2) & (distance <= 1)
    heads = [t.transpose(0, 1)[None] for t in (q, k, v)]
    expected = F.scaled_dot_product_attention(*heads, attn_mask=mask)[0].transpose(0, 1)
    assert_same(actual, expected, strides=False)


def test_dropout_is_refused() -> None:
    q = torch.randn(1, 4, 1, 8, device="neuron")
    with pytest.raises(RuntimeError, match="dropout_p: expected 0"):
        torch.ops.aten._flash_attention_forward(
            q, q, q, None, None, 4, 4, 0.5, False, return_debug_mask=False
        )[0].cpu()
