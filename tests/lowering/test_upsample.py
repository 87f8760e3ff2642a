"""Rules of upsample.py against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check, overload_of

SIZES = [((5, 7), (10, 14)), ((5, 7), (8, 3)), ((6, 6), (6, 6)), ((4, 4), (1, 9))]


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


@pytest.mark.parametrize(("size", "out"), SIZES)
@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d"])
def test_nearest(name, size, out):
    x = torch.randn(2, 3, *size)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        check(f"aten::{name}", x.mul(50).abs().to(dtype), list(out))
    grad = torch.randn(2, 3, *out)
    check(f"aten::{name}_backward", grad, list(out), list(x.shape))


@pytest.mark.parametrize(("size", "out"), SIZES)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d"])
def test_weighted(name, align, size, out):
    x = torch.randn(2, 3, *size)
    check(f"aten::{name}", x, list(out), align)
    check(f"aten::{name}", x.bfloat16(), list(out), align)
    check(f"aten::{name}", x.double(), list(out), align, exact_float64=True, rtol=1e-12, atol=1e-12)
    grad = torch.randn(2, 3, *out)
    check(f"aten::{name}_backward", grad, list(out), list(x.shape), align)


@pytest.mark.parametrize(
    "name", ["upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"]
)
def test_given_scales(name):
    x = torch.randn(1, 2, 5, 7)
    align = () if "nearest" in name else (False,)
    for scales in ((2.0, 1.5), (1.7, 0.6)):
        out = [int(5 * scales[0]), int(7 * scales[1])]
        check(f"aten::{name}", x, out, *align, *scales)
        y = overload_of(f"aten::{name}")(x, out, *align, *scales)
        check(f"aten::{name}_backward", torch.randn_like(y), out, list(x.shape), *align, *scales)


@pytest.mark.parametrize(
    ("mode", "shape", "name"),
    [
        ("nearest", (2, 3, 6), "upsample_nearest1d"),
        ("nearest-exact", (2, 3, 6), "_upsample_nearest_exact1d"),
        ("linear", (2, 3, 6), "upsample_linear1d"),
        ("nearest", (2, 3, 4, 5, 3), "upsample_nearest3d"),
        ("nearest-exact", (2, 3, 4, 5, 3), "_upsample_nearest_exact3d"),
        ("trilinear", (2, 3, 4, 5, 3), "upsample_trilinear3d"),
    ],
)
def test_other_dimensions(mode, shape, name):
    reach = (f"aten::{name}", f"aten::{name}_backward")
    for factor in (2.0, 1.5):
        check_gradients(
            lambda x, f=factor: F.interpolate(x, scale_factor=f, mode=mode),
            torch.randn(shape),
            reach=reach,
        )


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (9, 11), (5, 2)])
def test_antialiased(mode, align_corners, size):
    name = f"_upsample_{mode}2d_aa"
    check_gradients(
        lambda x: getattr(torch.ops.aten, name)(x, size, align_corners),
        torch.randn(2, 3, 6, 7),
        reach=(f"aten::{name}", f"aten::{name}_backward"),
    )


def test_antialiased_scale_and_bytes():
    x = torch.randn(1, 2, 8, 9)
    check("aten::_upsample_bilinear2d_aa", x, [4, 6], False, 0.55, 0.7)
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (2, 3, 6, 8), dtype=torch.uint8)
    for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_bicubic2d"):
        for size in ([3, 5], [9, 8]):
            check(f"aten::{name}", pixels, size, False)
    check("aten::upsample_bilinear2d", pixels, [7, 5], False)
