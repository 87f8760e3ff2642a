"""flex_attention on the device gives what its definition gives on the CPU.

PyTorch's own has no backward on the CPU; forward it is compared with, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as upstream

from support import assert_same, no_fallback, to_device
from torch_neuronx.integrations.flex_attention import flex_attention


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def inputs(hq: int = 4, hkv: int = 4, length: int = 16) -> list[torch.Tensor]:
    shapes = [(2, hq, length, 8), (2, hkv, length, 8), (2, hkv, length, 8)]
    return [torch.randn(s, requires_grad=True) for s in shapes]


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def masked(length: int, device: str, mask: Callable[..., Any] = causal) -> BlockMask:
    return create_block_mask(mask, 2, None, length, length, device=device, BLOCK_SIZE=8)


def definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Any = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Softmax of modified scores; rows that attend to nothing are zero."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    grid = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *grid)
    if block_mask is not None:
        scores = scores.masked_fill(~block_mask.mask_mod(*grid), -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(empty, 0.0, scores.masked_fill(empty, 0.0).softmax(-1)) @ v


def check(values: list[torch.Tensor], run: Callable[..., Any]) -> None:
    """Results and gradients, compiled as a whole on the device."""
    moved = to_device(values)
    expected = run(definition, *values)
    with torch.no_grad():
        detached = [v.detach() for v in values]
        torch.testing.assert_close(run(upstream, *detached), expected.detach())
    with warnings.catch_warnings(), no_fallback():
        warnings.filterwarnings("error", message=".*operator by operator")
        actual = torch.compile(run, backend="neuron", fullgraph=True)(flex_attention, *moved)
        actual.square().sum().backward()
    expected.square().sum().backward()
    assert_same(actual, expected, strides=False)
    for a, e in zip(moved, values, strict=True):
        if e.requires_grad:
            assert_same(a.grad, e.grad, strides=False)


def test_block_mask() -> None:
    masks = {device: masked(16, device) for device in ("cpu", "neuron")}
    check(inputs(), lambda f, q, k, v: f(q, k, v, block_mask=masks[q.device.type]))


def test_rows_that_attend_to_nothing_are_zero() -> None:
    def nothing_first(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q > 2) & (q >= kv)

    masks = {device: masked(16, device, nothing_first) for device in ("cpu", "neuron")}
    check(inputs(), lambda f, q, k, v: f(q, k, v, block_mask=masks[q.device.type]))


def test_score_function_that_captures_a_bias_with_gradient() -> None:
    bias = torch.randn(4, requires_grad=True)

    def run(f: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return f(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s) + bias[h] * (i - j))

    check([*inputs(), bias], run)


def test_grouped_query_heads() -> None:
    check(inputs(4, 2), lambda f, q, k, v: f(q, k, v, enable_gqa=True, scale=0.3))


def test_without_torch_compile_it_compiles_itself() -> None:
    q, k, v = inputs()
    out, lse = flex_attention(*to_device([q, k, v]), return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detached = [t.detach() for t in (q, k, v)]
        expected, expected_lse = upstream(*detached, return_lse=True)
    assert_same(out, expected, strides=False)
    assert_same(lse, expected_lse, strides=False)


def test_wrong_shapes_are_refused() -> None:
    q, k, v = to_device(inputs(4, 2))
    with pytest.raises(ValueError, match=r"4 query heads do not fit 2 .*enable_gqa"):
        flex_attention(q, k, v)
    with pytest.raises(ValueError, match=r"block mask is for lengths \(8, 8\), got \(16, 16\)"):
        flex_attention(*to_device(inputs()), block_mask=masked(8, "neuron"))
