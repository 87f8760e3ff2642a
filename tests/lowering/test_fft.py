"""Rules of fft.py: dimensions, normalisation, odd and even lengths, and the half spectrum."""

import pytest
import torch
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check, check_portable, make_case

torch.manual_seed(0)
REAL = torch.randn(3, 4, 5)
COMPLEX = torch.randn(3, 4, 5, dtype=torch.complex64)
DIMS = [[2], [0], [1, 2], [2, 0], [0, 1, 2]]
WIDE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_transforms(dim: list[int], normalization: int) -> None:
    check("aten::_fft_c2c", COMPLEX, dim, normalization, normalization != 1, **WIDE)
    check("aten::_fft_r2c", REAL, dim, normalization, True, **WIDE)
    check("aten::_fft_r2c", REAL, dim, normalization, False, **WIDE)


@pytest.mark.parametrize("size", [5, 6, 8, 9])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_real_signal_of_half_spectrum(dim: list[int], size: int) -> None:
    shape = [3, 4, 5]
    shape[dim[-1]] = size // 2 + 1
    half = torch.randn(shape, dtype=torch.complex64)
    check("aten::_fft_c2r", half, dim, 2, size, **WIDE)
    check("aten::_fft_c2r", half.transpose(0, 1), [2], 0, half.shape[2] * 2 - 1, **WIDE)


def test_four_dimensions_and_views() -> None:
    x = torch.randn(2, 3, 4, 5)
    check("aten::_fft_r2c", x.transpose(0, 3), [0, 1, 2, 3], 1, True, **WIDE)
    check("aten::_fft_c2c", x.to(torch.complex64)[:, 1:].conj(), [1, 3, 0, 2], 0, True, **WIDE)


def test_float64() -> None:
    check("aten::_fft_r2c", REAL.double(), [1], 0, True, exact_float64=True, rtol=1e-12, atol=1e-12)
    check("aten::_fft_r2c", REAL.double(), [1], 0, True, rtol=1e-5, atol=1e-5)


def test_gradients() -> None:
    signal = torch.randn(2, 6)
    check_gradients(torch.fft.rfft, signal, reach=("aten::_fft_r2c", "aten::_fft_c2c"))
    half = torch.randn(2, 4, dtype=torch.complex64)
    check_gradients(torch.fft.irfft, half, reach=("aten::_fft_c2r", "aten::_fft_r2c"))


def test_portable() -> None:
    check_portable(make_case("aten::_fft_r2c", [REAL, [0, 2], 0, True]))
    check_portable(make_case("aten::_fft_c2r", [COMPLEX, [0, 2], 0, 8]))
