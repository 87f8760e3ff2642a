"""Less common operators through the dispatcher: forward, gradients and out=, natively."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support import assert_same, no_fallback, to_device

Call = Callable[..., Any]

LENGTHS = {"input_lengths": [6, 4], "target_lengths": [2, 1]}
INDICES = torch.tensor([1, 4, 0, 4, 2])


def _ctc(x: torch.Tensor, t: torch.Tensor, *lengths: torch.Tensor) -> torch.Tensor:
    if not lengths:
        return F.ctc_loss(x.log_softmax(-1), t, [6, 4], [2, 1])
    return F.ctc_loss(x.log_softmax(-1), t, *lengths)


# name -> (call, tensors); the floating ones get gradients.
CALLS: dict[str, tuple[Call, list[Any]]] = {
    "reflection_pad1d": (lambda x: F.pad(x, (1, 2), "reflect"), [torch.randn(2, 3, 4)]),
    "replication_pad2d": (
        lambda x: F.pad(x, (1, 2, 0, 3), "replicate"),
        [torch.randn(2, 3, 4, 4)],
    ),
    "reflection_pad3d": (lambda x: F.pad(x, (1,) * 6, "reflect"), [torch.randn(2, 3, 3, 4, 3)]),
    "unfold": (lambda x: F.unfold(x, 2), [torch.randn(1, 2, 4, 5)]),
    "fold": (lambda x: F.fold(x, (4, 5), 2), [torch.randn(1, 8, 12)]),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [torch.randn(1, 2, 4, 5), torch.rand(1, 3, 3, 2) * 2 - 1],
    ),
    "antialias": (
        lambda x: F.interpolate(x, (3, 3), mode="bicubic", antialias=True),
        [torch.randn(1, 2, 6, 5)],
    ),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), [torch.randn(1, 2, 4, 5, 3)]),
    "embedding_bag": (
        lambda w: F.embedding_bag(
            INDICES.to(w.device), w, torch.tensor([0, 2, 2], device=w.device), mode="mean"
        ),
        [torch.randn(5, 3)],
    ),
    "embedding_bag, max": (
        lambda w: F.embedding_bag(
            INDICES.to(w.device), w, torch.tensor([0, 2, 2], device=w.device), mode="max"
        ),
        [torch.randn(5, 3)],
    ),
    "embedding_bag, weights": (
        lambda w, s: F.embedding_bag(
            INDICES.to(w.device),
            w,
            torch.tensor([0, 2], device=w.device),
            mode="sum",
            per_sample_weights=s,
        ),
        [torch.randn(5, 3), torch.randn(5)],
    ),
    "ctc_loss": (_ctc, [torch.randn(6, 2, 4), torch.tensor([[1, 2], [3, 3]])]),
    "ctc_loss, tensors": (
        _ctc,
        [
            torch.randn(6, 2, 4),
            torch.tensor([[1, 2], [3, 3]]),
            torch.tensor([6, 4]),
            torch.tensor([2, 1]),
        ],
    ),
    "multilabel_margin": (
        F.multilabel_margin_loss,
        [torch.randn(2, 4), torch.tensor([[0, 3, -1, 1], [1, -1, 0, 2]])],
    ),
    "cdist": (torch.cdist, [torch.randn(4, 3), torch.randn(5, 3)]),
    "pdist": (F.pdist, [torch.randn(4, 3)]),
    "segment_reduce": (
        lambda x, n: torch.segment_reduce(x, "mean", lengths=n),
        [torch.randn(5, 2), torch.tensor([2, 0, 3])],
    ),
    "repeat_interleave": (
        lambda x, n: x.repeat_interleave(n, 0),
        [torch.randn(3, 2), torch.tensor([2, 0, 3])],
    ),
    "cummax": (lambda x: x.cummax(1)[0], [torch.randn(2, 5)]),
    "fractional_max_pool": (
        lambda x, s: F.fractional_max_pool2d(x, 2, output_size=3, _random_samples=s),
        [torch.randn(1, 2, 6, 6), torch.rand(1, 2, 2)],
    ),
    "fractional_max_pool3d": (
        lambda x, s: F.fractional_max_pool3d(x, 2, output_size=2, _random_samples=s),
        [torch.randn(1, 2, 4, 4, 4), torch.rand(1, 2, 3)],
    ),
}


def _leaves(values: list[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name: str) -> None:
    call, given = CALLS[name]
    given = [v.clone() for v in given]
    # What only places windows has no gradient.
    leaves = _leaves(given)[: 1 if name.startswith("fractional") else None]
    for leaf in leaves:
        leaf.requires_grad_()
    moved = to_device(given)
    with no_fallback():
        result = call(*moved)
        expected = call(*given)
        assert_same(result, expected, strides=False)
        weights = torch.arange(expected.numel()).reshape(expected.shape) % 5 - 2.0
        moved_leaves = [m for m, g in zip(moved, given, strict=True) if g.requires_grad]
        actual = torch.autograd.grad(result, moved_leaves, weights.to("neuron"))
        assert_same(actual, torch.autograd.grad(expected, leaves, weights), strides=False, scale=5)


# out= overload -> arguments
OUTS: dict[str, list[Any]] = {
    "adaptive_avg_pool2d.out": [torch.randn(1, 2, 4, 4), [2, 2]],
    "adaptive_avg_pool3d.out": [torch.randn(1, 2, 4, 4, 4), [2, 2, 2]],
    "_logcumsumexp.out": [torch.randn(2, 4), 1],
    "conj_physical.out": [torch.randn(3, dtype=torch.complex64)],
    "reflection_pad2d.out": [torch.randn(1, 3, 4), [1, 1, 1, 1]],
    "im2col.out": [torch.randn(1, 2, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1]],
    "isin.Tensor_Tensor_out": [torch.arange(4), torch.tensor([1, 3])],
    "linalg_cross.out": [torch.randn(2, 3), torch.randn(2, 3)],
    "slow_conv_transpose2d.out": [torch.randn(1, 2, 3, 3), torch.randn(2, 2, 2, 2), [2, 2]],
    "slow_conv_transpose3d.out": [
        torch.randn(1, 2, 3, 3, 3), torch.randn(2, 2, 2, 2, 2), [2, 2, 2],
    ],
    "_slow_conv2d_backward.grad_input": [
        torch.randn(1, 2, 2, 2), torch.randn(1, 3, 3, 3), torch.randn(2, 3, 2, 2),
        [2, 2], [1, 1], [0, 0],
    ],
    "fractional_max_pool2d.output": [
        torch.randn(1, 2, 6, 6), [2, 2], [3, 3], torch.rand(1, 2, 2),
    ],
    "_upsample_bilinear2d_aa.out": [torch.randn(1, 2, 5, 5), [3, 3], False],
    "glu_jvp.out": [torch.randn(2, 2), torch.randn(2, 4), torch.randn(2, 4), 1],
}  # fmt: skip


@pytest.mark.parametrize("name", OUTS)
def test_out_is_resized(name: str) -> None:
    packet, _, chosen = name.partition(".")
    overload = getattr(getattr(torch.ops.aten, packet), chosen)
    args = OUTS[name]
    names = [a.name for a in overload._schema.arguments if a.is_out]
    special = {"isin": torch.bool, "indices": torch.int64}
    dtypes = {n: special.get(packet, special.get(n, args[0].dtype)) for n in names}
    want = {n: torch.empty(0, dtype=dtypes[n]) for n in names}
    overload(*args, **want)
    for sized in (False, True):
        got = {
            n: torch.empty(want[n].shape if sized else 0, dtype=dtypes[n], device="neuron")
            for n in names
        }
        with no_fallback():
            overload(*to_device(args), **got)
            assert_same([got[n] for n in names], [want[n] for n in names], strides=False)


def test_triangle_indices_and_shared_storage() -> None:
    with no_fallback():
        for row, col, offset in ((3, 4, 0), (4, 3, 1), (2, 5, -3), (0, 3, 0), (3, 3, 5)):
            for make in (torch.tril_indices, torch.triu_indices):
                result = make(row, col, offset, device="neuron")
                assert_same(result, make(row, col, offset))
        x = torch.zeros(2, 3, device="neuron")
        assert x.is_set_to(x.view(2, 3))
        assert not x.is_set_to(x.t())
        assert not x.is_set_to(torch.zeros(2, 3, device="neuron"))


def test_in_place_shifts_and_range() -> None:
    with no_fallback():
        x, y = torch.arange(5), torch.arange(5, device="neuron")
        x <<= 2
        y <<= 2
        assert_same(y, x)
        x >>= torch.tensor(1)
        y >>= torch.tensor(1, device="neuron")
        assert_same(y, x)
        out = torch.empty(0, device="neuron")
        assert_same(torch.range(1, 3, 0.5, out=out), torch.arange(1, 3.5, 0.5))


def test_repeats_must_fit() -> None:
    repeats = torch.tensor([2, 1], device="neuron")
    assert_same(torch.repeat_interleave(repeats, output_size=3), torch.tensor([0, 0, 1]))
    with pytest.raises(RuntimeError, match="allocated size does not match required size"):
        torch.repeat_interleave(repeats, output_size=5).cpu()
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        torch.repeat_interleave(torch.tensor([-2, 1], device="neuron")).cpu()


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layer_in_evaluation(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    moved = copy.deepcopy(layer).to("neuron")
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, False], [False, False, True]])
    with torch.no_grad(), no_fallback():
        assert_same(moved(x.to("neuron")), layer(x), scale=5)
        masked = moved(x.to("neuron"), src_key_padding_mask=padding.to("neuron"))
        expected = layer(x, src_key_padding_mask=padding)
        assert_same(masked, expected, scale=5)
        keys = torch.randn(2, 4, 8)
        for weights in (True, False):
            attention = layer.self_attn(x, keys, keys, need_weights=weights)
            on_device = moved.self_attn(*to_device([x, keys, keys]), need_weights=weights)
            assert_same(on_device[0], attention[0], strides=False, scale=5)
            if weights:
                assert_same(on_device[1], attention[1], strides=False, scale=5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool])
def test_arctangent_of_a_strided_view_of_narrow_integers(dtype: torch.dtype) -> None:
    """Fused with such a read, one plugin's atan2 gave rubbish."""
    x = torch.arange(800).remainder(9).reshape(20, 40).to(dtype)
    assert_same(torch.atan(x.to("neuron")[:, ::2]), torch.atan(x[:, ::2]))
    one = torch.ones(20, 20)
    assert_same(
        torch.atan2(x.to("neuron")[:, ::2].float(), one.to("neuron")),
        torch.atan2(x[:, ::2].float(), one),
    )
