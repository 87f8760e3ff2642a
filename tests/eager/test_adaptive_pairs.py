"""Ordered pairs of operators in one fused executable: the bits of operators run one by one (D6).

For each first operator, one sequence holds it and every second one on its result, constants
included. Where nothing else reads that result, the compiler is freer: there each second one has a
first one of its own. Sizes leave a remainder to every vector width.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from adaptive_support import Fused, both, equal, no_budget  # noqa: F401

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FUNCTIONS = (
    torch.abs, torch.asinh, torch.atan, torch.cos, torch.erf, torch.erfc, torch.exp, torch.exp2,
    torch.expm1, torch.floor, torch.lgamma, torch.log, torch.log1p, torch.log2, torch.neg,
    torch.reciprocal, torch.relu, torch.rsqrt, torch.sigmoid, torch.sin, torch.sinh, torch.sqrt,
    torch.square, torch.tan, torch.tanh, torch.trunc,
    F.elu, F.gelu, F.hardswish, F.logsigmoid, F.mish, F.silu, F.softplus,
)  # fmt: skip


def layer_norm_backward(v: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mean, rstd = y[:, :1], y[:, 1:2]
    mask = [True, False, False]
    backward = torch.ops.aten.native_layer_norm_backward
    return backward(v, y, [4], mean, rstd, y[0], y[1], mask)[0].view(-1)


def unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    return lambda v, y: function(v)


OPERATORS: dict[str, Operator] = {
    **{f.__name__: unary(f) for f in FUNCTIONS},
    "add": lambda v, y: v + y,
    "sub": lambda v, y: v - y,
    "subtracted": lambda v, y: y - v,
    "mul": lambda v, y: v * y,
    "div": lambda v, y: v / y,
    "divided": lambda v, y: y / v,
    "maximum": torch.maximum,
    "pow": lambda v, y: v**y,
    "base": lambda v, y: y**v,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "add 1e8": lambda v, y: v + 1e8,
    "sub 1e8": lambda v, y: v - 1e8,
    "mul 3": lambda v, y: v * 3.0,
    "div 3": lambda v, y: v / 3.0,
    "div 0.1": lambda v, y: v / 0.1,
    "pow 2": lambda v, y: v**2,
    "pow 3": lambda v, y: v**3.0,
    "pow 0.5": lambda v, y: v**0.5,
    "add alpha": lambda v, y: torch.add(v, y, alpha=0.3),
    "addcmul": lambda v, y: torch.addcmul(v, y, v, value=0.3),
    "addcdiv": lambda v, y: torch.addcdiv(v, v, y, value=0.3),
    "lerp": lambda v, y: torch.lerp(v, y, 0.3),
    "where": lambda v, y: torch.where(v > 0, v, y),
    "bfloat16": lambda v, y: (v.bfloat16() * 1.1).float(),
    "float16": lambda v, y: (v.half() + 1).float(),
    "softmax": lambda v, y: v.softmax(0),
    "cumsum": lambda v, y: v.cumsum(0),
    "mean": lambda v, y: v.mean() + y,
    "var": lambda v, y: v.var() * y,
    "sort": lambda v, y: v.sort()[0],
    "layer_norm": lambda v, y: F.layer_norm(v, v.shape),
    "layer_norm backward": lambda v, y: layer_norm_backward(v.view(-1, 4), y.view(-1, 4)),
    "outer": lambda v, y: (v[:4, None] @ y[None, :4]).sum(0).repeat(len(v))[: len(v)],
}
FAST = ("mul", "div 3", "add 1e8", "tanh")


def compare(first: str, size: int, shared: bool = True) -> None:
    generator = torch.Generator().manual_seed(size)
    x = (torch.randn(size, generator=generator) * 2).to("neuron")
    y = (torch.rand(size, generator=generator) + 0.5).to("neuron")

    def run() -> list[torch.Tensor]:
        if shared:
            v = OPERATORS[first](x, y)
            return [OPERATORS[second](v, y) for second in OPERATORS]
        many = [OPERATORS[first](x - i / 64, y) for i in range(len(OPERATORS))]
        return [second(v, y) for second, v in zip(OPERATORS.values(), many, strict=True)]

    with Fused() as fused:
        one_by_one, adaptive = both(run, rounds=6)
    assert fused.operators >= len(OPERATORS)
    for a, b in zip(one_by_one, adaptive, strict=True):
        different = [n for n, p, q in zip(OPERATORS, a, b, strict=True) if not equal(p, q)]
        assert different == []


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("first", FAST)
def test_pairs(first: str, shared: bool) -> None:
    compare(first, 1004, shared)


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [12, 1004])
@pytest.mark.parametrize("first", OPERATORS)
def test_all_pairs(first: str, size: int, shared: bool) -> None:
    compare(first, size, shared)
