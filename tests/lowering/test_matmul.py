"""Matrix products."""

import math

import pytest
import torch
from tests.lowering.harness import check, check_both, full_arguments, make_case, overload_of, run

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64]


def rand(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(shape) * 2).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype: torch.dtype) -> None:
    a, b = rand(4, 6, dtype=dtype), rand(6, 5, dtype=dtype)
    check("aten::mm", a, b)
    check("aten::mm", rand(6, 4, dtype=dtype).t(), rand(5, 6, dtype=dtype).t())
    check("aten::bmm", rand(3, 4, 6, dtype=dtype), rand(3, 6, 5, dtype=dtype))
    check("aten::mv", a, b[:, 0])
    check("aten::dot", a[0], b[:, 0])
    if dtype.is_complex:
        check("aten::vdot", a[0], b[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("beta", [0, 1, 2])
@pytest.mark.parametrize("alpha", [1, 3])
def test_blends(dtype: torch.dtype, beta: int, alpha: int) -> None:
    a, b = rand(4, 6, dtype=dtype), rand(6, 5, dtype=dtype)
    x, y = rand(3, 4, 6, dtype=dtype), rand(3, 6, 5, dtype=dtype)
    scale = {"beta": beta, "alpha": alpha}
    # CPU rounds bfloat16 to storage between the steps of these.
    loose = {"rtol": 0.05, "atol": 0.25} if dtype is torch.bfloat16 else {}
    check_both("aten::addmm", rand(5, dtype=dtype), a, b, **scale, **loose)
    check_both("aten::addmv", rand(4, dtype=dtype), a, b[:, 0], **scale, **loose)
    check_both("aten::baddbmm", rand(3, 4, 5, dtype=dtype), x, y, **scale, **loose)
    check_both("aten::addbmm", rand(4, 5, dtype=dtype), x, y, **scale, **loose)
    check_both("aten::addr", rand(4, 5, dtype=dtype), a[:, 0], b[0], **scale, **loose)


@pytest.mark.parametrize("form", ["eager", "graph"])
def test_beta_of_zero_ignores_nan(form: str) -> None:
    bad = torch.full((2, 2), math.nan)
    check("aten::addmm", bad, torch.eye(2), torch.ones(2, 2), beta=0, form=form)


def test_reduced_floats_accumulate_in_float32() -> None:
    x = torch.ones(1, 4096, dtype=torch.bfloat16)
    check("aten::mm", x, x.t(), rtol=0, atol=0)


def test_addmm_rounds_once() -> None:
    a, b = rand(8, 64, dtype=torch.bfloat16), rand(64, 8, dtype=torch.bfloat16)
    bias = rand(8, dtype=torch.bfloat16)
    case = make_case("aten::addmm", full_arguments(overload_of("aten::addmm"), [bias, a, b], {}))
    exact = (bias.double() + a.double() @ b.double()).bfloat16()
    assert run(case)[0].astype("float32").tolist() == exact.float().tolist()


@pytest.mark.parametrize("gelu", [False, True])
def test_addmm_activation(gelu: bool) -> None:
    a, b = rand(4, 6, dtype=torch.float32), rand(6, 5, dtype=torch.float32)
    check("aten::_addmm_activation", b[0], a, b, use_gelu=gelu)


def test_integer_products_widen() -> None:
    a = torch.randint(-128, 127, (32, 16), dtype=torch.int8)
    check("aten::_int_mm", a, torch.randint(-128, 127, (16, 8), dtype=torch.int8))


def test_bool_addr() -> None:
    m, v = torch.tensor([[True, False], [False, False]]), torch.tensor([True, False])
    check_both("aten::addr", m, v, ~v)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3))], ids=str)
def test_empty(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    check("aten::mm", *[torch.ones(s) for s in shapes])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross(dtype: torch.dtype) -> None:
    a, b = rand(4, 3, dtype=dtype), rand(1, 3, dtype=dtype)
    check("aten::linalg_cross", a, b)
    check("aten::linalg_cross", a.t(), b.t(), dim=0)
