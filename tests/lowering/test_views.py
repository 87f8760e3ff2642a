"""Views and shape operators as functions. Everything is exact: values only move."""

from typing import Any

import pytest
import torch
from tests.lowering.harness import check, check_both

X = torch.arange(24.0).reshape(2, 3, 4)
ROW = torch.arange(10)


def strided() -> torch.Tensor:
    """A view that is neither contiguous nor at the start of its storage."""
    return torch.arange(60.0).reshape(3, 4, 5)[1:, 1:, ::2].transpose(0, 1)


CASES: list[tuple[str, list[Any]]] = [
    ("view", [[6, -1]]),
    ("permute", [[2, 0, -2]]),
    ("transpose.int", [0, -1]),
    ("expand", [[5, 2, -1, 4]]),
    ("squeeze", []),
    ("squeeze.dim", [1]),
    ("squeeze.dims", [[0, 1]]),
    ("unsqueeze", [-1]),
    ("select.int", [1, -1]),
    ("select.int", [-1, 2]),
    ("slice.Tensor", [1, 1, 3, 1]),
    ("slice.Tensor", [-1, -3, 9223372036854775807, 2]),
    ("slice.Tensor", [0, 5, 2, 1]),
    ("as_strided", [[2, 2], [3, 1], 4]),
    ("as_strided", [[3, 4], [1, 0], 2]),
    ("split.Tensor", [3, -1]),
    ("split_with_sizes", [[1, 0, 3], 2]),
    ("unbind.int", [-2]),
    ("diagonal", [1, 0, 2]),
    ("diagonal", [-1, -1, 1]),
    ("unfold", [2, 2, 1]),
    ("unfold", [-1, 2, 2]),
    ("unfold", [2, 5, 1]),
    ("detach", []),
    ("alias", []),
]


def _copy(name: str) -> str:
    base, _, overload = name.partition(".")
    return f"aten::{base}_copy" + (f".{overload}" if overload else "")


@pytest.mark.parametrize(("name", "args"), CASES, ids=str)
def test_views(name: str, args: list[Any]) -> None:
    for x in (X, X.bfloat16(), X.to(torch.int8)):
        if name == "unfold" and args[1] == 5:
            x = torch.arange(6.0).reshape(1, 1, 6).to(x.dtype)
        check_both(f"aten::{name}", x, *args)
    if name != "as_strided" and not (name == "unfold" and args[1] == 5):
        check_both(_copy(name), X, *args)


THREE = [c for c in CASES if c[0] in ("permute", "diagonal", "transpose.int")]


@pytest.mark.parametrize(("name", "args"), THREE, ids=str)
def test_views_of_views(name: str, args: list[Any]) -> None:
    check(f"aten::{name}", strided(), *args)


def test_zero_dim_operands() -> None:
    x = torch.tensor(2.5)
    check("aten::permute", x, [])
    check("aten::transpose.int", x, 0, -1)
    check("aten::t", x)
    check("aten::t", torch.arange(3.0))
    check("aten::squeeze.dim", x, 0)
    check("aten::unsqueeze", x, 0)
    check("aten::expand", x, [2, 3])
    check("aten::flip", x, [])
    check("aten::roll", x, [1], [])
    check("aten::repeat", x, [2, 2])
    check("aten::unfold", x, 0, 1, 1)


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_select_takes_its_index_as_operand(index: int) -> None:
    check_both("aten::select.int", X, 2, index)
    check_both("aten::select_scatter", X, torch.ones(2, 3), 2, index)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int64, torch.bfloat16),
        (torch.uint8, torch.float32),
        (torch.bool, torch.uint8),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
        (torch.float64, torch.int64),
    ],
    ids=str,
)
def test_view_dtype(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([[1, 2, 3, 0], [5, 6, 7, 8]]).to(source)
    if (source, target) == (torch.int64, torch.bfloat16):
        x = x * (2**48 + 2**15 + 2**33)  # bits that are normal bfloat16 numbers
    check("aten::view.dtype", x, target)


def test_complex_views() -> None:
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    for suffix in ("", "_copy"):
        check(f"aten::view_as_real{suffix}", z)
        check(f"aten::view_as_complex{suffix}", torch.view_as_real(z).clone())


def test_cat() -> None:
    check("aten::cat", [X, X[:, :1], strided().reshape(-1)[:8].reshape(2, 1, 4)], 1)
    check("aten::cat", [torch.empty(0), X], -1)
    check("aten::cat", [torch.empty(0), torch.empty(0)])
    check("aten::cat", [torch.ones(2), torch.ones(2, dtype=torch.int64)])
    check("aten::cat", [ROW.to(torch.int8), ROW.to(torch.bfloat16), torch.ones(1).bool()])
    check("aten::stack", [ROW, ROW + 1], -1)
    check("aten::stack", [torch.tensor(1.0), torch.tensor(2)])


def test_rearranging() -> None:
    check("aten::flip", X, [0, -1])
    check("aten::roll", X, [1, -2], [0, 2])
    check("aten::roll", X, [5])
    check("aten::roll", X, [7], [-1])
    for k in (-1, 0, 1, 2, 3):
        check("aten::rot90", X, k, [0, 2])
    check("aten::repeat", X, [2, 1, 1, 3])
    check("aten::repeat", X, [0, 1, 2])
    check("aten::channel_shuffle", torch.arange(48.0).reshape(2, 6, 2, 2), 3)
    check("aten::pixel_shuffle", torch.arange(72.0).reshape(2, 9, 2, 2), 3)
    check("aten::pixel_unshuffle", torch.arange(72.0).reshape(2, 1, 6, 6), 3)
    check("aten::block_diag", [torch.ones(2, 3), torch.tensor(2), torch.ones(2)])


@pytest.mark.parametrize("pad", [[1, 2], [-1, 1], [1, 0, 0, 2], [0, -2, 1, 1, -1, 2]], ids=str)
def test_constant_pad(pad: list[int]) -> None:
    check_both("aten::constant_pad_nd", X, pad, 1.5)
    check_both("aten::constant_pad_nd", X.to(torch.int32), pad, 3)


@pytest.mark.parametrize("diagonal", [0, 1, -2, 10])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name: str, diagonal: int) -> None:
    check_both(f"aten::{name}", X, diagonal)
    check_both(f"aten::{name}", torch.ones(3, 5, dtype=torch.bool), diagonal)


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_diagonals(offset: int) -> None:
    check("aten::diag_embed", X, offset)
    check("aten::diag_embed", X, offset, 0, 2)
    base = torch.zeros(3, 4, 5)
    check("aten::diagonal_scatter", base, base.diagonal(offset, 2, 0) + 1, offset, 2, 0)


def test_scatters() -> None:
    base = torch.zeros(4, 6)
    check("aten::slice_scatter", base, torch.ones(4, 3), 1, 2, 5, 1)
    check("aten::slice_scatter", base, torch.ones(4, 3), 1, -6, 9223372036854775807, 2)
    check("aten::slice_scatter", base, torch.ones(2, 6, dtype=torch.int64), 0, 1, 3)
    check("aten::as_strided_scatter", base, torch.ones(2, 3), [2, 3], [6, 2], 1)


def test_float64_moves_exactly() -> None:
    x = torch.tensor([1.0 + 2**-50, 3.0], dtype=torch.float64)
    for name, args in (("view", [[2, 1]]), ("flip", [[0]]), ("repeat", [[2]])):
        check(f"aten::{name}", x, *args, rtol=0, atol=0)
    check("aten::cat", [x, x], rtol=0, atol=0)
