"""Recurrent layers, attention, randomness."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regressions.both import same_on_both


@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm_gradients_with_random_initial_states(batch_first: bool) -> None:
    def case(device: str) -> list[torch.Tensor]:
        lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=batch_first)
        inputs = [torch.randn(3, 3, 4), torch.randn(4, 3, 5), torch.randn(4, 3, 5)]
        lstm.to(device)
        x, h, c = (t.to(device).requires_grad_() for t in inputs)
        out, (hn, cn) = lstm(x, (h, c))
        (out.square().sum() + hn.sum() + (cn * 2).sum()).backward()
        grads = [x.grad, h.grad, c.grad] + [p.grad for p in lstm.parameters()]
        return [out.detach(), hn.detach(), cn.detach(), *grads]

    same_on_both(case, scale=5)


@pytest.mark.parametrize("hidden", [1, 7, 33])
def test_lstm_sizes_and_packed_sequences(hidden: int) -> None:
    def case(device: str) -> list[torch.Tensor]:
        lstm = nn.LSTM(3, hidden).to(device)
        x = torch.randn(5, 3, 3).to(device)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 1]))
        out, (h, _) = lstm(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out)
        return [lstm(x)[0].detach(), padded.detach(), h.detach()]

    same_on_both(case)


def test_fully_masked_rows() -> None:
    def case(device: str) -> list[torch.Tensor]:
        q, k, v = (torch.randn(1, 2, 4, 8).to(device).requires_grad_() for _ in range(3))
        mask = torch.ones(4, 4, dtype=torch.bool, device=device)
        mask[0] = False
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out.sum().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    out, *_ = same_on_both(case, scale=5)
    assert not out[:, :, 0].any()


def test_attention_with_a_key_padding_mask() -> None:
    def case(device: str) -> list[torch.Tensor]:
        attention = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
        x = torch.randn(2, 4, 8).to(device)
        padding = torch.tensor([[False, False, True, True], [False] * 4], device=device)
        out, weights = attention(x, x, x, key_padding_mask=padding)
        return [out.detach(), weights.detach()]

    same_on_both(case)


def test_a_bool_mask_means_what_the_additive_one_means() -> None:
    def case(device: str) -> list[torch.Tensor]:
        q, k, v = (torch.randn(2, 2, 5, 4).to(device) for _ in range(3))
        keep = torch.ones(5, 5, dtype=torch.bool, device=device).tril()
        bias = torch.zeros(5, 5, device=device).masked_fill(~keep, -float("inf"))
        return [
            F.scaled_dot_product_attention(q, k, v, attn_mask=keep),
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ]

    a, b, c = same_on_both(case)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(a, c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_attention_block_at_every_precision(dtype: torch.dtype) -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.randn(2, 6, 12).to(dtype).to(device)
        weight = (torch.randn(36, 12) / 4).to(dtype).to(device)
        q, k, v = F.linear(x, weight).view(2, 6, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 12).float()

    # Reduced floats round the scores, whose exponentials differ by as much.
    same_on_both(case, scale=1 if dtype == torch.float32 else 1000)


def test_the_first_draw_after_a_fork_advances() -> None:
    torch.neuron.manual_seed(0)
    torch.rand(4, device="neuron")
    with torch.random.fork_rng(device_type="neuron"):
        torch.rand(4, device="neuron")
    before = torch.neuron.get_rng_state()
    torch.rand(4, device="neuron")
    assert not torch.equal(torch.neuron.get_rng_state(), before)


def test_recomputed_dropout_has_the_same_mask() -> None:
    def run(call: Any) -> list[float]:
        torch.manual_seed(3)
        x = torch.linspace(1, 2, 30, device="neuron").requires_grad_()
        call(lambda t: F.dropout(t.cos(), 0.5), x).square().sum().backward()
        return x.grad.tolist()

    plain = run(lambda f, x: f(x))
    assert run(lambda f, x: checkpoint(f, x, use_reentrant=False)) == plain
    assert run(lambda f, x: checkpoint(f, x, use_reentrant=True)) == plain


def test_masks_of_two_steps_differ_without_compiling_again() -> None:
    from support import Executables

    x = torch.ones(64, device="neuron")
    first = F.dropout(x, 0.5).cpu()
    with Executables() as new:
        second = F.dropout(x, 0.5).cpu()
    assert not torch.equal(first, second) and new.count == 0
