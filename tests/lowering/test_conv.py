"""Rules of conv.py against CPU PyTorch."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import numpy as np
import pytest
import torch
from tests.lowering.harness import check

from torch_neuronx.lowering import table
from torch_neuronx.lowering.rules import conv


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


# spatial sizes, kernel, stride, padding, dilation, output padding
GEOMETRY = [
    ((9,), (3,), (1,), (0,), (1,), (0,)),
    ((11,), (4,), (3,), (2,), (2,), (1,)),
    ((8, 7), (3, 3), (1, 1), (1, 1), (1, 1), (0, 0)),
    ((8, 7), (3, 2), (2, 3), (1, 0), (2, 1), (1, 2)),
    ((6, 6), (1, 1), (2, 2), (0, 0), (1, 1), (1, 1)),
    ((5, 5), (5, 5), (1, 1), (4, 4), (1, 1), (0, 0)),
    ((4, 5, 6), (2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 2, 1), (1, 0, 1)),
]
CASES = list(itertools.product(GEOMETRY, (False, True), (1, 2, 4)))


def arguments(geometry, transposed, groups, dtype=torch.float32):
    size, kernel, stride, padding, dilation, output_padding = geometry
    channels, out_channels = 4, 8
    x = torch.randn(2, channels, *size).to(dtype)
    if transposed:
        weight = torch.randn(channels, out_channels // groups, *kernel)
    else:
        weight = torch.randn(out_channels, channels // groups, *kernel)
        output_padding = (0,) * len(size)
    rest = [list(stride), list(padding), list(dilation), transposed, list(output_padding), groups]
    return x, weight.to(dtype), torch.randn(out_channels).to(dtype), rest


@pytest.mark.parametrize(("geometry", "transposed", "groups"), CASES)
def test_convolution(geometry, transposed, groups):
    x, weight, bias, rest = arguments(geometry, transposed, groups)
    close = {"rtol": 1e-4, "atol": 1e-4}  # sums of up to 144 products in another order
    check("aten::convolution", x, weight, bias, *rest, **close)
    y = torch.ops.aten.convolution(x, weight, None, *rest)
    check("aten::convolution", x, weight, None, *rest, **close)
    check(
        "aten::convolution_backward",
        torch.randn_like(y),
        x,
        weight,
        [bias.numel()],
        *rest,
        [True, True, True],
        **close,
    )


# With (_, False, True) CPU gives the weight's gradient although it is masked.
MASKS = [m for m in itertools.product((False, True), repeat=3) if any(m[:2]) and m[1:] != (0, 1)]


@pytest.mark.parametrize("mask", MASKS)
def test_output_mask(mask):
    x, weight, bias, rest = arguments(GEOMETRY[2], False, 1)
    y = torch.ops.aten.convolution(x, weight, bias, *rest)
    check(
        "aten::convolution_backward",
        torch.randn_like(y),
        x,
        weight,
        [8],
        *rest,
        list(mask),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_floats(dtype):
    for transposed in (False, True):
        x, weight, bias, rest = arguments(GEOMETRY[3], transposed, 2, dtype)
        y = torch.ops.aten.convolution(x, weight, bias, *rest)
        # One rounding against CPU's: two neighbouring values at magnitude 8 are 2^-5 apart.
        close = {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"atol": 8e-3}
        check("aten::convolution", x, weight, bias, *rest, **close)
        check(
            "aten::convolution_backward",
            torch.randn_like(y),
            x,
            weight,
            [8],
            *rest,
            [True, True, True],
            **close,
        )


def test_empty_batch():
    x, weight, bias, rest = arguments(GEOMETRY[2], False, 1)
    x = x[:0]
    y = torch.ops.aten.convolution(x, weight, bias, *rest)
    check("aten::convolution", x, weight, bias, *rest)
    check("aten::convolution_backward", y, x, weight, [8], *rest, [True, True, True])


def test_overrideable_operators_share_the_rule():
    """PrivateUse1 reaches these; CPU has no kernel for them to compare with."""
    rules = table.load_rules()
    name = "aten::convolution_overrideable"
    assert rules[name].function is rules["aten::convolution"].function
    x, weight, _, rest = arguments(GEOMETRY[3], True, 2)
    y = torch.ops.aten.convolution(x, weight, None, *rest)
    g = torch.randn_like(y)
    expected = torch.ops.aten.convolution_backward(g, x, weight, None, *rest, [True, True, True])
    backward = rules["aten::convolution_backward_overrideable"].function
    got = backward(*(a.numpy() for a in (g, x, weight)), *rest, (True, True, True))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.tensor(a.tolist()), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ((4,), (3,), (1,), (1,), (1,)),
        ((3, 3), (3, 3), (1, 1), (1, 1), (1, 1)),
        ((5, 4), (3, 2), (2, 3), (2, 0), (2, 1)),
        ((3, 2), (1, 1), (2, 1), (0, 0), (1, 1)),
        ((2, 2, 3), (2, 2, 2), (1, 1, 2), (1, 0, 1), (1, 1, 2)),
        ((9, 7), (4, 3), (4, 3), (0, 0), (1, 1)),  # windows side by side, a rest at the ends
        ((5, 4, 6), (2, 2, 3), (2, 2, 3), (1, 0, 0), (1, 1, 1)),
        ((9, 10), (9, 9), (1, 1), (1, 0), (1, 1)),  # more positions than are sliced
    ],
)
def test_weight_larger_than_its_patches(size, kernel, stride, padding, dilation, dtype):
    x = torch.randn(1, 3, *size).to(dtype)
    weight = torch.randn(64, 3, *kernel).to(dtype)
    zero = (0,) * len(size)
    geometry = (list(stride), list(padding), list(dilation), False, list(zero), 1)
    check("aten::convolution", x, weight, torch.randn(64).to(dtype), *geometry)
    out = torch.ops.aten.convolution(x, weight, None, *geometry)
    grad = torch.randn_like(out)
    mask = [True, True, True]
    check("aten::convolution_backward", grad, x, weight, [64], *geometry, mask)


@pytest.mark.parametrize("stride", [16, 15])
def test_a_large_window_makes_no_large_program(stride):
    """One slice a position of the window would be 256 of them, which compile for seconds."""
    x, weight = np.ones((1, 3, 64, 64), np.float32), np.ones((48, 3, 16, 16), np.float32)
    convolve = partial(conv._plain, stride=(stride,) * 2, padding=((0, 0),) * 2, dilation=(1, 1))
    text = jax.jit(partial(convolve, groups=1)).lower(x, weight).as_text()
    assert len(text.splitlines()) < 30


def test_no_input_channels_with_a_bias():
    check(
        "aten::convolution", torch.ones(2, 0, 9, 8), torch.ones(6, 0, 3, 2), torch.ones(6),
        [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
    )  # fmt: skip
