"""Rules of quantize.py against CPU."""

import math

import pytest
import torch
from tests.lowering.harness import check, check_both

torch.manual_seed(0)
X = torch.cat(
    [torch.randn(4, 6) * 2, torch.tensor([[math.nan, math.inf, -math.inf, 0.25, 0.75, 0]])]
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_per_tensor(dtype: torch.dtype) -> None:
    x = X.to(dtype) if dtype is torch.float32 else X[:4].to(dtype)
    check_both("aten::fake_quantize_per_tensor_affine_cachemask", x, 0.5, 1, -4, 4)


@pytest.mark.parametrize("enabled", [0, 1])
@pytest.mark.parametrize("zero", [torch.int32, torch.float32], ids=str)
def test_per_tensor_by_tensors(zero: torch.dtype, enabled: int) -> None:
    check(
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        X, torch.tensor([0.5]), torch.tensor([1], dtype=zero), torch.tensor([enabled]), -4, 4,
    )  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis: int) -> None:
    x = X.nan_to_num(0, 9, -9)  # CPU's per-channel kernel overflows there
    n = x.shape[axis]
    scale, zero = torch.linspace(0.2, 1, n), torch.arange(n, dtype=torch.int32) - 2
    check("aten::fake_quantize_per_channel_affine_cachemask", x, scale, zero, axis, -4, 4)


@pytest.mark.parametrize("zero", [-9.0, -1.7, 0.5, 1.5, 9.0])
def test_learnable(zero: float) -> None:
    x, grad = X[:4].clone(), torch.randn(4, 6)
    scale, zeros = torch.tensor([0.5]), torch.tensor([zero])
    name = "aten::_fake_quantize_learnable_per_tensor_affine"
    check(name, x, scale, zeros, -4, 4, 0.7)
    check(f"{name}_backward", grad, x, scale, zeros, -4, 4, 0.7)
    for axis in (0, 1):
        n = x.shape[axis]
        scale, zeros = torch.linspace(0.2, 1, n), torch.full((n,), zero)
        name = "aten::_fake_quantize_learnable_per_channel_affine"
        check(name, x, scale, zeros, axis, -4, 4, 0.7)
        check(f"{name}_backward", grad, x, scale, zeros, axis, -4, 4, 0.7)


SWITCHES = [(1, 1), (0, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize(("observer", "quantise"), SWITCHES)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_moving_average(per_row: bool, symmetric: bool, observer: int, quantise: int) -> None:
    x = X[:4].clone()
    n = 4 if per_row else 1
    for low, high in ((-1.0, 2.0), (math.inf, -math.inf), (0.0, 0.0), (0.0, 1e-4), (-2e-4, -1e-4)):
        if math.isinf(low) and not observer:
            continue  # CPU refuses a range that nothing was observed for
        check(
            "aten::_fused_moving_avg_obs_fq_helper",
            x * (1e-5 if abs(low) < 0.1 else 1),
            torch.tensor([observer]),
            torch.tensor([quantise]),
            torch.full((n,), low),
            torch.full((n,), high),
            torch.ones(n),
            torch.zeros(n, dtype=torch.int32),
            0.1, 0, 15, 0, per_row, symmetric,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_weights(dtype: torch.dtype) -> None:
    weight = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    x, scales = torch.randn(4, 64).to(dtype), torch.rand(32).to(dtype)
    check(
        "aten::_weight_int8pack_mm", x, weight, scales, atol=2.0 if dtype != torch.float32 else 1e-2
    )


def fp8(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float32], ids=str)
def test_scaled_mm(out_dtype: torch.dtype | None) -> None:
    a, b = fp8(16, 32), fp8(48, 32).t()
    one, half = torch.tensor(1.0), torch.tensor(0.5)
    check("aten::_scaled_mm", a, b, one, half, out_dtype=out_dtype)
    check("aten::_scaled_mm", a, b, one, half, bias=torch.randn(48), out_dtype=out_dtype)


def test_scaled_mm_by_rows() -> None:
    a, b = fp8(16, 32), fp8(48, 32).t()
    rows, columns = torch.rand(16, 1), torch.rand(1, 48)
    check("aten::_scaled_mm", a, b, rows, columns, out_dtype=torch.bfloat16)
    check(
        "aten::_scaled_mm_v2",
        a, b, [rows], [1], [0], [columns], [1], [0], None, torch.bfloat16,
    )  # fmt: skip
    check(
        "aten::_scaled_mm_v2",
        a, b, [torch.tensor(2.0)], [0], [0], [torch.tensor(0.5)], [0], [0], None, torch.float32,
    )  # fmt: skip
