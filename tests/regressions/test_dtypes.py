"""Dtypes, promotion, integers, bool, complex."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regressions.both import same_on_both

NUMERIC = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def test_cumulative_sum_of_bools() -> None:
    def case(device: str) -> torch.Tensor:
        return torch.ones(300, dtype=torch.bool, device=device).cumsum(0)

    out = same_on_both(case)
    assert out[127].item() == 128 and out.dtype == torch.int64


def test_integer_division_beyond_the_floats() -> None:
    def case(device: str) -> list[torch.Tensor]:
        a = torch.tensor([42309891, -42309891, 2**53 + 1, -(2**53) - 1, 2**62 + 3], device=device)
        b = torch.tensor([31, 31, 3, -3, 7], device=device)
        return [
            a % 31,
            a % b,
            torch.fmod(a, b),
            a // b,
            torch.div(a, b, rounding_mode="trunc"),
            torch.gcd(a, b),
            a.int() % 31,
            torch.floor_divide(a, 10),
        ]

    assert same_on_both(case)[0][0].item() == 6


def test_arithmetic_of_zero_dimensional_bools() -> None:
    def case(device: str) -> list[torch.Tensor]:
        true = torch.tensor(True, device=device)
        both = torch.tensor([True, False], device=device)
        return [true * 2, true + 0, both.float(), both.sum(), true / 2, both * 1.5, ~both]

    same_on_both(case)


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_result_dtypes_of_reductions(dtype: torch.dtype) -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor([1, 0, 1, 1]).to(dtype).to(device)
        results = [x.sum(), x.prod(), x.cumprod(0), x.cumsum(0), x[1:], x[x != 0], x.amax()]
        if dtype.is_floating_point:
            results += [x.mean(), x.std()]
        return results

    same_on_both(case)


def test_products_of_int8_are_int64() -> None:
    def case(device: str) -> torch.Tensor:
        return torch.tensor([[100, 3], [-5, 7]], dtype=torch.int8, device=device).prod(1)

    assert same_on_both(case).tolist() == [300, -35]


@pytest.mark.parametrize("wide", [torch.float64, torch.complex128, torch.float16], ids=str)
def test_promotion_of_operators_with_three_operands(wide: torch.dtype) -> None:
    def case(device: str) -> list[torch.Tensor]:
        a = torch.tensor([1.0, 2.0, 3.0], device=device)
        b = torch.tensor([2.0, 2.0, 4.0], device=device)
        c = torch.tensor([3.0, 4.0, 5.0]).to(wide).to(device)
        results = [
            torch.addcmul(a, b, c),
            torch.addcmul(c, a, b, value=2),
            torch.addcdiv(c, a, b),
            torch.where(a > 1, a, c),
        ]
        if not wide.is_complex:
            results += [torch.clamp(a, min=c), torch.clamp(c, max=b)]
        return results

    same_on_both(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8], ids=str)
def test_numbers_do_not_promote_tensors(dtype: torch.dtype) -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor([2, 4, 6]).to(dtype).to(device)
        scalar = torch.tensor(2, device=device)
        results = [x * 2, 2 * x, x + scalar, scalar + x, x * np.int64(3), x - np.int8(1)]
        if dtype.is_floating_point:
            x *= 0.5
            results += [x, x * 0.5, x / 3, x + np.float32(2), x * torch.tensor(0.5, device=device)]
            results += [x * torch.tensor(0.5, dtype=torch.float64, device=device)]
        return results

    assert all(r.dtype == dtype for r in same_on_both(case))


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_many_bools(descending: bool) -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor([(i * 7919) % 3 == 0 for i in range(4099)], device=device)
        values, indices = torch.sort(x, stable=True, descending=descending)
        return [values, indices, torch.sort(x, descending=descending).values]

    same_on_both(case)


@pytest.mark.parametrize("source", NUMERIC, ids=str)
def test_every_cast(source: torch.dtype) -> None:
    values = [0.0, 1.0, -1.0, 2.5, -2.5, 100.0, 127.0]
    if source.is_floating_point:
        values += [float("nan"), float("inf"), -float("inf"), 1e4, 65519.0]

    def case(device: str) -> list[torch.Tensor]:
        x = torch.tensor(values).abs().to(source).to(device)
        y = torch.tensor(values[:7]).to(torch.int8).to(source).to(device)
        results = []
        for target in NUMERIC:
            # What a float beyond an integer's range becomes is undefined.
            defined = x[:7] if not target.is_floating_point and target != torch.bool else x
            results.append(defined.to(target))
            if target != torch.uint8:
                results.append(y.to(target))
        return results

    same_on_both(case)


def test_conjugate_views_are_not_forgotten() -> None:
    def case(device: str) -> list[torch.Tensor]:
        z = torch.tensor([[1 + 2j, 3 + 4j], [5 - 1j, 2j]], device=device)
        lazy = z.conj()
        assert lazy.is_conj()
        twin = z.clone()
        torch.view_as_real(twin)[..., 1] = 7
        return [
            lazy.imag,
            lazy @ z,
            torch.einsum("ij,jk->ik", lazy, z),
            lazy.cpu().to(device),
            (z[0] * lazy[0]).sum(),
            twin,
            lazy.mH,
        ]

    imag, *_ = same_on_both(case)
    assert imag[0].tolist() == [-2, -4]


def test_complex_magnitudes_and_odd_transforms() -> None:
    def case(device: str) -> list[torch.Tensor]:
        z = torch.tensor([3 + 4j, -3 + 4j, 0j, 1j, 5 - 12j, -8 - 6j], device=device)
        t = torch.tensor([1.0, -2.0, 3.5, 0.25, 7.0], device=device)
        return [z.abs(), torch.fft.irfft(torch.fft.rfft(t), 5)]

    magnitudes, again = same_on_both(case)
    assert magnitudes.tolist() == pytest.approx([5, 5, 0, 1, 13, 10])
    torch.testing.assert_close(again.cpu(), torch.tensor([1.0, -2.0, 3.5, 0.25, 7.0]))
