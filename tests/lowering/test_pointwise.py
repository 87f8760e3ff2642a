"""Arithmetic of several operands: promotion, special values, integer semantics."""

import itertools
import math

import jax
import pytest
import torch
from tests.lowering.harness import check, check_both, make_case, overload_of, run
from tests.lowering.harness import full_arguments as fill

from torch_neuronx.lowering import build

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, 0.5]


def grid(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of special values."""
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)))
    return pairs[:, 0].to(dtype), pairs[:, 1].to(dtype)


BINARY = [
    "add.Tensor",
    "sub.Tensor",
    "rsub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "fmod.Tensor",
    "remainder.Tensor",
    "floor_divide",
    "pow.Tensor_Tensor",
    "atan2",
    "hypot",
    "copysign.Tensor",
    "heaviside",
    "logaddexp",
    "logaddexp2",
    "xlogy.Tensor",
    "special_xlog1py",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "clamp_min.Tensor",
    "clamp_max.Tensor",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_special_pairs(name: str, dtype: torch.dtype) -> None:
    check(f"aten::{name}", *grid(dtype))


def test_nextafter_is_exact() -> None:
    a, b = torch.tensor([1.0, -1.0, 3.0, NAN, INF]), torch.tensor([2.0, -0.5, 3.0, 1.0, 0.0])
    check("aten::nextafter", a, b, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_modes(mode: str | None) -> None:
    a, b = grid(torch.float32)
    check("aten::div.Tensor_mode", a, b, rounding_mode=mode)
    ints = torch.tensor([-7, -1, 0, 1, 7, 100])
    check("aten::div.Tensor_mode", ints[:, None], torch.tensor([-3, 2, 7]), rounding_mode=mode)
    check_both("aten::div.Scalar_mode", ints, -2, rounding_mode=mode)
    check("aten::div.Tensor_mode", ints.abs().to(torch.uint8), torch.tensor(3), rounding_mode=mode)


@pytest.mark.parametrize("name", ["remainder", "fmod"])
def test_integer_remainders(name: str) -> None:
    a = torch.tensor([-7, -1, 0, 1, 7])
    check(f"aten::{name}.Tensor", a[:, None], torch.tensor([-3, 2, 7]))
    check_both(f"aten::{name}.Scalar", a, -3)


@pytest.mark.parametrize("name", ["remainder.Tensor", "fmod.Tensor", "floor_divide"])
def test_integer_division_by_zero_is_declared(name: str) -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([1, 1])
    op = overload_of(f"aten::{name}")
    case = make_case(f"aten::{name}", fill(op, [a, b], {}))
    with jax.enable_x64(True):
        case.buffers[1] = jax.numpy.zeros_like(case.buffers[1])
        word = jax.jit(lambda *p: build.evaluate(case.program, *p))(*case.buffers)[-1]
    assert word.tolist() == [1, 0]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        op(a, b * 0)


PROMOTIONS = [
    (torch.int32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float16),
    (torch.int64, torch.float16),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int64),
    (torch.int16, torch.bool),
    (torch.float32, torch.complex64),
    (torch.float64, torch.float32),
]


@pytest.mark.parametrize("zero_dim", [False, True])
@pytest.mark.parametrize(("left", "right"), PROMOTIONS, ids=str)
@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "eq.Tensor", "where.self"])
def test_promotion(name: str, left: torch.dtype, right: torch.dtype, zero_dim: bool) -> None:
    a = torch.tensor([0, 1, 3]).to(left)
    b = (torch.tensor(3) if zero_dim else torch.tensor([1, 1, 2])).to(right)
    extra = [torch.tensor([True, False, True])] if name == "where.self" else []
    check(f"aten::{name}", *extra, a, b)
    check(f"aten::{name}", *extra, b, a)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [2, -1.5, True, 1 + 2j], ids=str)
@pytest.mark.parametrize("name", ["add.Scalar", "mul.Scalar", "eq.Scalar", "lt.Scalar"])
def test_numbers_are_weak(name: str, number: complex, dtype: torch.dtype) -> None:
    if name == "lt.Scalar" and isinstance(number, complex):
        pytest.skip("complex numbers have no order")
    x = torch.tensor([0, 1, 2]).to(dtype)
    check_both(f"aten::{name}", x, number)
    check_both(f"aten::{name}", x[1], number)


@pytest.mark.parametrize("alpha", [1, 2, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_alpha(alpha: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(4, 3).to(dtype), torch.randn(3).to(dtype)
    for name in ("add", "sub", "rsub"):
        check_both(f"aten::{name}.Tensor", x, y, alpha=alpha)
        check_both(f"aten::{name}.Scalar", x, 3, alpha)
    check_both("aten::addcmul", x, x, y, value=alpha)
    check_both("aten::addcdiv", x, x, y + 3, value=alpha)


def test_alpha_of_one_is_no_operand() -> None:
    x = torch.ones(3)
    op = overload_of("aten::add.Tensor")
    one = make_case("aten::add.Tensor", fill(op, [x, x], {"alpha": 1}))
    two = make_case("aten::add.Tensor", fill(op, [x, x], {"alpha": 2}))
    assert (len(one.buffers), len(two.buffers)) == (2, 3)
    assert run(two)[0].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 7])
def test_powers(exponent: float) -> None:
    check("aten::pow.Tensor_Scalar", torch.tensor(SPECIAL), exponent)
    check("aten::pow.Tensor_Scalar", torch.tensor([0.5, -2.0]).bfloat16(), exponent)
    if isinstance(exponent, float) or exponent >= 0:
        check("aten::pow.Tensor_Scalar", torch.tensor([-3, 0, 1, 5]), exponent)
    check_both("aten::pow.Scalar", exponent, torch.tensor([0.0, 1.0, -2.0, 3.5]))


def test_integer_powers_wrap_and_invert() -> None:
    base = torch.tensor([-3, -1, 0, 1, 2, 3])
    exponent = torch.tensor([0, 1, 2, 5, 41, 64, -1, -2])
    check("aten::pow.Tensor_Tensor", base[:, None], exponent[:6])
    ones = torch.tensor([-1, 1, 2])
    check("aten::pow.Tensor_Tensor", ones[:, None], exponent)
    check("aten::pow.Tensor_Tensor", base.to(torch.int8)[:, None], exponent[:5].to(torch.int8))


@pytest.mark.parametrize("limits", [(None, 1), (-1, None), (-1, 1), (2, -2), (0.5, NAN)], ids=str)
def test_clamp(limits: tuple[float | None, float | None]) -> None:
    check_both("aten::clamp", torch.tensor(SPECIAL), *limits)
    check_both("aten::clamp", torch.tensor([-3, 0, 3]), *limits)
    tensors = [None if v is None else torch.tensor(v, dtype=torch.float32) for v in limits]
    check("aten::clamp.Tensor", torch.tensor(SPECIAL), *tensors)


def test_gcd_lcm() -> None:
    a, b = torch.tensor([0, 4, -12, 35]), torch.tensor([0, 6, 18, -21])
    check("aten::gcd", a, b)
    check("aten::lcm", a, b)


@pytest.mark.parametrize("name", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
def test_shifts(name: str, dtype: torch.dtype) -> None:
    a = torch.tensor([1, 7, 100, -5 if dtype.is_signed else 5]).to(dtype)
    b = torch.tensor([0, 1, 31, 64 if dtype is not torch.uint8 else 8]).to(dtype)
    check(f"aten::bitwise_{name}_shift.Tensor", a[:, None], b)
    check_both(f"aten::bitwise_{name}_shift.Tensor_Scalar", a, 2)
    check_both(f"aten::bitwise_{name}_shift.Scalar_Tensor", 5, b)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_bitwise(name: str) -> None:
    check(f"aten::bitwise_{name}.Tensor", torch.tensor([12, -1]), torch.tensor([10, 7]))
    check(f"aten::bitwise_{name}.Tensor", torch.tensor([True, False]), torch.tensor([True, True]))
    check_both(f"aten::bitwise_{name}.Scalar", torch.tensor([12, 5], dtype=torch.int32), 6)
    check_both(f"aten::bitwise_{name}.Scalar_Tensor", 6, torch.tensor([12, 5], dtype=torch.int16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_masks(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [3, 4]]).to(dtype)
    mask = torch.tensor([True, False])
    check_both("aten::masked_fill.Scalar", x, mask, 7)
    check("aten::masked_fill.Tensor", x, mask, torch.tensor(7.0).to(dtype))
    check("aten::where.self", mask, x, torch.tensor(0).to(dtype))
    if dtype.is_floating_point:
        check_both("aten::masked_fill.Scalar", x, mask, -INF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_to_num(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    check_both("aten::nan_to_num", x)
    check_both("aten::nan_to_num", x, 1.0, 2.0, -2.0)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 0.75, 1.0, 2.0])
def test_lerp(weight: float) -> None:
    x, y = torch.tensor([1e8, 1.0, -3.0]), torch.tensor([1.0, 3.0, 1e8])
    check_both("aten::lerp.Scalar", x, y, weight)
    check("aten::lerp.Tensor", x, y, torch.tensor([weight, 0.1, 0.9]))


def test_reduced_floats_round_once() -> None:
    # CPU rounds alpha to bfloat16 first; the exact sum, rounded once, is what CUDA gives.
    x, y = torch.ones(4).bfloat16(), torch.tensor([1.0, 1.0078125, 1.015625, 1.0234375]).bfloat16()
    alpha = 0.3330078125
    case = make_case(
        "aten::add.Tensor", fill(overload_of("aten::add.Tensor"), [x, y], {"alpha": alpha})
    )
    exact = (x.double() + alpha * y.double()).bfloat16()
    assert run(case)[0].astype("float32").tolist() == exact.float().tolist()


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma_functions_of_infinities(name: str) -> None:
    a = torch.tensor([INF, INF, INF, INF, 1.0, 0.5, NAN])
    x = torch.tensor([0.0, 1.0, 1e30, INF, INF, 0.0, 1.0])
    check(f"aten::{name}", a, x)
