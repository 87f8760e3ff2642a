"""Indexing, scatter, masks."""

from __future__ import annotations

import pytest
import torch

from regressions.both import same_on_both


def test_scatter_of_a_transposed_source() -> None:
    def case(device: str) -> list[torch.Tensor]:
        source = torch.arange(1.0, 7.0, device=device).reshape(2, 3).t()  # 3 x 2
        index = torch.tensor([[0, 1, 2], [2, 0, 1]], device=device).t()
        out = torch.zeros(3, 2, device=device).scatter_(0, index, source)
        last = torch.zeros(3, 2, device=device)
        last.scatter_(0, torch.zeros(3, 2, dtype=torch.int64, device=device), source)
        return [out, last]

    _, last = same_on_both(case)
    assert last.tolist() == [[3, 6], [0, 0], [0, 0]]  # the last writer in logical order


def test_combining_experts_with_repeated_indices() -> None:
    tokens, experts, width = 5, 3, 4

    def case(device: str) -> list[torch.Tensor]:
        out = torch.arange(tokens * experts * width, dtype=torch.float32, device=device)
        out = out.reshape(tokens * experts, width)
        index = torch.arange(tokens, device=device).repeat_interleave(experts)
        zeros = torch.zeros(tokens, width, device=device)
        return [
            zeros.index_add(0, index, out),
            zeros.scatter_add(0, index[:, None].expand(-1, width), out),
            zeros.index_put((index,), out, accumulate=True),
            out.view(tokens, experts, width).sum(1),
        ]

    *spellings, expected = same_on_both(case)
    assert all(torch.equal(s, expected) for s in spellings)


def test_masked_fill_of_a_permuted_tensor() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(24.0, device=device).reshape(2, 3, 4).permute(2, 0, 1)
        twin = x.clone(memory_format=torch.contiguous_format)
        x.masked_fill_(x > 11, -1)
        twin.masked_fill_(twin > 11, -1)
        return [x, twin]

    assert torch.equal(*same_on_both(case))


@pytest.mark.parametrize("rows", [1, 8])
def test_keeping_the_top_k(rows: int) -> None:
    def case(device: str) -> torch.Tensor:
        t = torch.randn(rows, 50).to(device)
        v, _ = torch.topk(t, 5)
        t[t < v[:, [-1]]] = -float("inf")
        return t

    assert torch.isinf(same_on_both(case)).sum().item() == rows * 45


def test_assigning_rows_by_a_mask() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.zeros(171, 2048, dtype=torch.float16, device=device)
        mask = torch.zeros(171, dtype=torch.bool, device=device)
        mask[3::8][:20] = True
        values = torch.arange(20 * 2048, device=device).reshape(20, 2048).half() / 64
        x[mask] = values
        return [x, x.index_copy(0, mask.nonzero()[:, 0], values), x + 1]

    a, b, _ = same_on_both(case)
    assert torch.equal(a, b)


def test_index_add_of_bools() -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.tensor([True], device=device)
        return x.index_add(
            0, torch.tensor([0], device=device), torch.tensor([False], device=device)
        )

    assert same_on_both(case).tolist() == [True]


def test_scatter_with_nothing_copies() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(3.0, device=device)
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        out = x.scatter(0, nothing, torch.empty(0, device=device))
        x.add_(1)
        return [out, x, x.index_add(0, nothing, torch.empty(0, device=device))]

    same_on_both(case)


def test_indices_made_in_place() -> None:
    def case(device: str) -> list[torch.Tensor]:
        m = torch.tensor([[1, 0], [0, 2]], device=device)
        p = torch.arange(2)  # on the host: an index may be
        return [m[torch.arange(m.shape[0]), p], m[torch.arange(2, device=device), p.to(device)]]

    same_on_both(case)


@pytest.mark.parametrize("rows", [257, 2049, 65537])
def test_gathering_far_rows_of_half_precision(rows: int) -> None:
    def case(device: str) -> list[torch.Tensor]:
        table = (torch.arange(rows, device=device) % 1000).half().reshape(rows, 1)
        index = torch.tensor([0, rows - 1, rows // 2, 256, rows - 2], device=device)
        return [
            table.gather(0, index[:, None]),
            table.index_select(0, index),
            torch.nn.functional.embedding(index, table),
            table[index],
        ]

    same_on_both(case)


@pytest.mark.parametrize("heads", [1, 3])
def test_writing_a_cache_through_a_view(heads: int) -> None:
    def case(device: str) -> list[torch.Tensor]:
        cache = torch.zeros(4, 2, heads, 5, device=device)  # blocks, positions, heads, width
        slots = torch.tensor([6, 0, 3], device=device)
        keys = torch.arange(3.0 * heads * 5, device=device).reshape(3, heads, 5)
        cache.view(-1, heads, 5).index_put_((slots,), keys)
        cache.view(-1, heads, 5)[slots[1:]] += 1
        return [cache, cache.view(-1, heads, 5)[slots]]

    same_on_both(case)


def test_views_of_odd_widths_of_int64() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(855, device=device).reshape(1, 855)
        return [x[:, 1:], x[:, :-1] + x[:, 1:], x.view(855)[::2], x[:, -7:].clone().view(7)]

    same_on_both(case)


def test_nucleus_sampling() -> None:
    def case(device: str) -> list[torch.Tensor]:
        logits = torch.randn(2, 33).to(device)
        ordered, order = logits.sort(descending=True)
        drop = ordered.softmax(-1).cumsum(-1) > 0.8
        drop[:, 1:] = drop[:, :-1].clone()
        drop[:, 0] = False
        mask = drop.scatter(1, order, drop)
        return [mask, logits.masked_fill(mask, -float("inf")).softmax(-1)]

    same_on_both(case)


@pytest.mark.parametrize("width", [63, 64, 65, 127, 129])
def test_broadcasting_a_reduced_value(width: int) -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.randn(3, width).to(device)
        return x.mean(-1, keepdim=True) + torch.zeros_like(x) + x.flip(0)

    same_on_both(case)


def test_bad_indices_are_refused() -> None:
    table = torch.nn.Embedding(10, 2).to("neuron")
    with pytest.raises(IndexError, match="out of range"):
        table(torch.tensor([10], device="neuron")).cpu()
    bag = torch.nn.EmbeddingBag(10, 2).to("neuron")
    with pytest.raises((RuntimeError, IndexError)):
        bag(torch.tensor([[-1]], device="neuron")).cpu()
    assert table(torch.tensor([9], device="neuron")).shape == (1, 2)  # the device goes on
