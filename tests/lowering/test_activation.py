"""Rules of activation.py against CPU PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check, check_both

INF, NAN = math.inf, math.nan
# Ordinary values, the kinks of every piecewise function here, and what is not finite.
SPECIAL = torch.tensor(
    [-INF, -20.5, -3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0, 6.0, 90.0, INF, NAN]
)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


UNARY = [
    ("relu", ()),
    ("gelu", ()),
    ("silu", ()),
    ("mish", ()),
    ("hardswish", ()),
    ("hardsigmoid", ()),
    ("log_sigmoid_forward", ()),
    ("elu", (1.3, 1.1, 0.9)),
    ("celu", (1.3,)),
    ("leaky_relu", (0.2,)),
    ("softplus", (2.0, 3.0)),
    ("hardtanh", (-0.5, 2.0)),
    ("threshold", (0.3, -4.0)),
    ("softshrink", (0.5,)),
    ("hardshrink", (0.5,)),
]


@pytest.mark.parametrize(("name", "args"), UNARY)
def test_forward(name, args):
    for dtype in FLOATS:
        # CPU's vectorised kernels treat some infinities of reduced floats as NaN.
        x = SPECIAL if dtype == torch.float32 else SPECIAL[torch.isfinite(SPECIAL)]
        if name == "gelu":  # CPU's polynomial gives NaN at +inf; x * Phi(x) is +inf there
            x = x[x != INF]
        check_both(f"aten::{name}", x.to(dtype), *args)


def test_forward_of_integers():
    x = torch.arange(-4, 5)
    check("aten::relu", x)
    check_both("aten::hardtanh", x, -1, 2)
    check_both("aten::threshold", x, 1, 7)


def test_gelu_tanh():
    for dtype in FLOATS:
        check("aten::gelu", SPECIAL[:-1].to(dtype), approximate="tanh")


BACKWARD = [
    ("gelu_backward", lambda g, x: (g, x)),
    ("silu_backward", lambda g, x: (g, x)),
    ("mish_backward", lambda g, x: (g, x)),
    ("hardswish_backward", lambda g, x: (g, x)),
    ("hardsigmoid_backward", lambda g, x: (g, x)),
    ("elu_backward", lambda g, x: (g, 1.3, 1.1, 0.9, False, x)),
    ("elu_backward", lambda g, x: (g, 1.3, 1.1, 0.9, True, F.elu(x, 1.3))),
    ("leaky_relu_backward", lambda g, x: (g, x, 0.2, False)),
    ("softplus_backward", lambda g, x: (g, x, 2.0, 3.0)),
    ("hardtanh_backward", lambda g, x: (g, x, -0.5, 1.0)),
    ("threshold_backward", lambda g, x: (g, x, 0.25)),
    ("softshrink_backward", lambda g, x: (g, x, 0.5)),
    ("hardshrink_backward", lambda g, x: (g, x, 0.5)),
    ("sigmoid_backward", lambda g, x: (g, x.sigmoid())),
    ("tanh_backward", lambda g, x: (g, x.tanh())),
    ("log_sigmoid_backward", lambda g, x: (g, x, torch.exp(-x.abs()))),
    ("logit_backward", lambda g, x: (g, x.sigmoid())),
    ("logit_backward", lambda g, x: (g, x, 0.3)),
    ("rrelu_with_noise_backward", lambda g, x: (g, x, x.sigmoid(), 0.1, 0.3, False, False)),
]


@pytest.mark.parametrize(("name", "arguments"), BACKWARD)
def test_backward(name, arguments):
    for dtype in FLOATS:
        x = SPECIAL[torch.isfinite(SPECIAL)].to(dtype)
        if name.startswith("logit"):
            x = x.clamp(-3, 3)
        grad = torch.linspace(-2, 2, x.numel()).to(dtype)
        check_both(f"aten::{name}", *arguments(grad, x))


def test_gelu_tanh_backward():
    x = torch.linspace(-5, 5, 40)
    check("aten::gelu_backward", x.flip(0), x, approximate="tanh")


@pytest.mark.parametrize("dim", [0, -1])
def test_glu(dim):
    x = torch.randn(4, 6)
    check("aten::glu", x, dim)
    check_gradients(lambda a: F.glu(a, dim), x, reach=("aten::glu_backward",))


def test_prelu():
    check_gradients(
        F.prelu,
        torch.randn(2, 3, 4),
        torch.randn(3),
        reach=("aten::_prelu_kernel", "aten::_prelu_kernel_backward"),
    )


def test_rrelu_training_backward():
    x, noise = torch.randn(9), torch.rand(9)
    check_both("aten::rrelu_with_noise_backward", x, x, noise, 0.1, 0.3, True, False)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name):
    x = torch.randn(3, 4, 5) * 4
    for dtype in FLOATS:
        for dim in (0, 1, -1):
            check(f"aten::{name}", x.to(dtype), dim, False)
    check(f"aten::{name}", torch.tensor(2.0), 0, False)
    check(f"aten::{name}", torch.zeros(0, 3), 1, False)
    check(f"aten::{name}", torch.zeros(3, 0), 1, False)
    masked = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]])
    check(f"aten::{name}", masked, 1, False)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax_backward(name):
    x = torch.randn(3, 4, 5)
    for dtype in FLOATS:
        y = getattr(torch.ops.aten, name)(x.to(dtype), 1, False)
        check(f"aten::{name}_backward_data", torch.randn(3, 4, 5).to(dtype), y, 1, dtype)
    check(f"aten::{name}_backward_data", torch.tensor(1.5), torch.tensor(1.0), 0, torch.float32)


def test_safe_softmax():
    masked = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]])
    check("aten::_safe_softmax", masked, 1)
    check("aten::_safe_softmax", masked, 0)


@pytest.mark.parametrize("dim", [0, 1])
def test_glu_directional_derivatives(dim):
    torch.manual_seed(0)
    x, dx = torch.randn(4, 6), torch.randn(4, 6)
    y = F.glu(x, dim)
    check("aten::glu_jvp", y, x, dx, dim)
    g, dg = torch.randn_like(y), torch.randn_like(y)
    grad = torch.ops.aten.glu_backward(g, x, dim)
    check("aten::glu_backward_jvp", grad, g, x, dg, dx, dim)
