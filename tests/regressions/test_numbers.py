"""NaN, infinity, empty tensors, zero dimensions, ties, repetition."""

from __future__ import annotations

import pytest
import torch

from regressions.both import same_on_both

INF, NAN = float("inf"), float("nan")


def test_nan_wins_in_minima_and_maxima() -> None:
    def case(device: str) -> list[torch.Tensor]:
        a = torch.tensor([1.0, NAN, NAN, 2.0], device=device)
        b = torch.tensor([NAN, 1.0, NAN, 3.0], device=device)
        return [torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), a.amax(), a.clamp(0, 1)]

    same_on_both(case)


def test_a_mask_as_a_factor_does_not_hide_nan() -> None:
    """XLA takes a converted mask times x for a choice between x and zero."""

    def products(mask: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        wide = mask.to(torch.float32)
        return [
            *(mask * x, x * mask, mask / (x - x), mask * INF, wide * x, (x > 0).float() * x),
            *(torch.addcmul(x, mask, x), mask.to(torch.bfloat16) * x.bfloat16()),
            *(torch._foreach_mul([x], [mask])[0], (mask * x.unsqueeze(0)).sum(0)),
        ]

    def case(device: str) -> list[torch.Tensor]:
        mask = torch.tensor([True, False, True, False], device=device)
        x = torch.tensor([1.0, NAN, INF, -INF], device=device)
        results = products(mask, x)
        if device == "neuron":
            results += torch.compile(products, backend="neuron", fullgraph=True)(mask, x)
            return results
        return results + results

    same_on_both(case)


def test_dropout_keeps_nan() -> None:
    x = torch.full((64,), NAN, device="neuron")
    assert torch.nn.functional.dropout(x, 0.5).isnan().all()


def test_hypotenuse_does_not_overflow() -> None:
    def case(device: str) -> torch.Tensor:
        a = torch.tensor([3.4e38, INF, 1e-30, 3.0], device=device)
        b = torch.tensor([1.0, NAN, 1e-30, 4.0], device=device)
        return torch.hypot(a, b)

    out = same_on_both(case)
    assert out[0].isfinite() and out[1].item() == INF


def test_statistics_of_nothing() -> None:
    def case(device: str) -> list[torch.Tensor]:
        empty = torch.empty(3, 0, device=device)
        return [
            empty.var(1),
            empty.var(1, correction=0),
            empty.mean(1),
            empty.sum(1),
            empty.prod(1),
            torch.count_nonzero(torch.zeros(0, dtype=torch.bool, device=device)),
            torch.tensor(2.0, device=device).var(0),
            torch.tensor(2.0, device=device).var(0, False),
        ]

    with pytest.warns(UserWarning, match="degrees of freedom"):
        same_on_both(case)


def test_products_with_sizes_of_zero() -> None:
    def case(device: str) -> list[torch.Tensor]:
        bias = torch.arange(4.0, device=device)
        layer = torch.nn.Linear(0, 4).to(device)
        with torch.no_grad():
            layer.bias.copy_(bias)
        batch = torch.ones(2, 3, 4, device=device)
        none = torch.empty(2, 3, 0, device=device, requires_grad=True)
        product = torch.baddbmm(batch, none, torch.empty(2, 0, 4, device=device), beta=0.5)
        product.sum().backward()
        x = torch.empty(3, 0, device=device, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        return [
            torch.empty(0, 9, device=device) @ torch.ones(9, device=device),
            product.detach(),
            none.grad,
            y.detach(),
            layer.bias.grad,
            x.grad,
            torch.empty(3, 0, device=device) @ torch.empty(0, 2, device=device),
            bias.index_add(0, torch.empty(0, dtype=torch.int64, device=device), bias[:0]),
        ]

    same_on_both(case)


def test_ties_of_topk_are_compared_by_value() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor([[2.0, 1.0, 2.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]], device=device)
        values, indices = torch.topk(x, 3)
        assert all(len(set(row)) == 3 for row in indices.tolist())
        return [values, x.gather(1, indices)]

    same_on_both(case)


def test_negative_zeros() -> None:
    # CPU's cumsum loses the sign of -0.0, which is not promised: not compared.
    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor([-0.0, 0.0, -1.0], device=device)
        return [torch.signbit(x), torch.signbit(-x), torch.signbit(x.abs()), torch.signbit(x * 1)]

    same_on_both(case)


def test_histograms_drop_what_is_outside() -> None:
    def case(device: str) -> list[torch.Tensor]:
        edges = [1.0, 3.0]
        outside = [e + s * d for e, s in zip(edges, (-1, 1), strict=True) for d in (2e-7, 5e-6)]
        x = torch.tensor([*edges, 2.0, 1.5, *outside, -5.0], device=device)
        return [torch.histc(x, 2, 1, 3), torch.histc(x, 4, 1, 3)]

    assert same_on_both(case)[0].tolist() == [2, 2]


def test_a_large_reduction_repeats_to_the_bit() -> None:
    x = torch.randn(1 << 17, generator=torch.Generator().manual_seed(0)).to("neuron")
    first = torch.stack([x.sum(), x.mean(), x.var()])
    again = [torch.stack([x.sum(), x.mean(), x.var()]) for _ in range(100)]  # back to back
    assert torch.equal(torch.stack(again), first.expand(100, 3))
