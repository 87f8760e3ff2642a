"""Functions of many elements, where the plugin's vector code runs: OpInfo's samples are small.

One plugin's ``atan2`` with a constant was rubbish from 63 elements up and right below.
"""

from __future__ import annotations

import pytest
import torch

NAMES = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos",
    "cosh", "deg2rad", "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor",
    "frac", "i0", "lgamma", "log", "log10", "log1p", "log2", "logit", "neg", "rad2deg",
    "reciprocal", "relu", "round", "rsqrt", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh",
    "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
BINARY = (
    "add", "atan2", "copysign", "div", "fmax", "fmin", "fmod", "floor_divide", "hypot",
    "logaddexp", "logaddexp2", "maximum", "minimum", "mul", "nextafter", "pow", "remainder",
    "sub", "xlogy",
)  # fmt: skip
CUT = (
    "sqrt", "rsqrt", "asin", "acos", "atan", "asinh", "acosh", "atanh", "log", "log10",
    "log2", "log1p",
)  # fmt: skip
SIZE = 1000
TOLERANCE = {torch.float32: (5e-5, 5e-6), torch.bfloat16: (1.6e-2, 1e-2)}


def values(dtype: torch.dtype) -> torch.Tensor:
    x = torch.linspace(-3, 3, SIZE)
    return (x * 10).to(dtype) if dtype == torch.int64 else x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_unary_functions(dtype: torch.dtype) -> None:
    x, wrong = values(dtype), []
    device = x.to("neuron")
    for name in NAMES:
        function = getattr(torch, name)
        try:
            expected = function(x)
        except (RuntimeError, NotImplementedError):
            continue  # a dtype that CPU lacks
        rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
        # Digamma and lgamma have zeros between steep poles.
        scale = 20 if name in ("digamma", "lgamma", "erfinv", "tan") else 1
        got = function(device).cpu()
        if not torch.allclose(got, expected, scale * rtol, scale * atol, equal_nan=True):
            wrong.append((name, (got.double() - expected.double()).abs().nan_to_num().max().item()))
    assert not wrong


@pytest.mark.parametrize("constant", [False, True])
def test_binary_functions(constant: bool) -> None:
    x, wrong = values(torch.float32), []
    y = torch.tensor(1.0) if constant else x.flip(0) + 0.25
    for name in BINARY:
        function = getattr(torch, name)
        expected = function(x, y)
        got = function(x.to("neuron"), y.to("neuron")).cpu()
        if not torch.allclose(got, expected, 2e-5, 2e-6, equal_nan=True):
            wrong.append((name, (got - expected).abs().nan_to_num().max().item()))
    assert not wrong


@pytest.mark.parametrize("size", [63, 64, 65, 20000])
def test_arc_tangent_of_any_size(size: int) -> None:
    x = torch.linspace(-5, 5, size)
    one = torch.ones(())
    for function in (
        torch.atan,
        lambda x: torch._foreach_atan([x])[0],
        torch.compile(torch.atan, backend="neuron"),
        torch.compile(lambda x: torch.atan2(x, torch.ones_like(x)), backend="neuron"),
        lambda x: torch.atan2(x, one),
    ):
        torch.testing.assert_close(function(x.to("neuron")).cpu(), x.atan(), rtol=1e-6, atol=1e-6)


def test_sides_of_branch_cuts() -> None:
    parts = [-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0]
    z = torch.tensor([complex(a, b) for a in parts for b in parts])
    for name in CUT:
        function = getattr(torch, name)
        expected, got = (
            torch.view_as_real(function(z)),
            torch.view_as_real(function(z.to("neuron"))),
        )
        torch.testing.assert_close(
            got.cpu(),
            expected,
            rtol=1e-5,
            atol=1e-5,
            equal_nan=True,
            msg=lambda m, n=name: f"{n}: {m}",
        )
    for exponent in (0.5, 1.5, torch.tensor(0.5 + 0j)):
        on_device = exponent.to("neuron") if isinstance(exponent, torch.Tensor) else exponent
        expected, got = z.pow(exponent), z.to("neuron").pow(on_device).cpu()
        finite = z != 0
        torch.testing.assert_close(got[finite], expected[finite], rtol=1e-5, atol=1e-5)
