"""Rules of index.py against CPU PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import check, check_both, make_case, run

from torch_neuronx.lowering.errors import LoweringError

X = torch.arange(60.0).reshape(3, 4, 5)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


def t(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_embedding(dtype):
    weight = torch.randn(7, 3)
    for indices in (t(1, 6, 0, 6), torch.tensor(3), t(), t(1, 2, 3, 4).reshape(2, 2)):
        check("aten::embedding", weight, indices.to(dtype))
    check("aten::embedding", weight, t(1, 2, 2), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_dense_backward(dtype):
    indices = t(1, 6, 0, 6, 2, 6)
    grad = torch.randn(6, 3).to(dtype)
    for padding, scale in ((-1, False), (6, False), (-1, True), (2, True)):
        check("aten::embedding_dense_backward", grad, indices, 7, padding, scale)
    check("aten::embedding_dense_backward", torch.zeros(0, 3), t(), 4, -1, False)


def test_embedding_renorm():
    weight = torch.randn(7, 3) * 3
    indices = t(1, 5, 1)
    expected = torch.embedding_renorm_(weight.clone(), indices, 1.5, 2.0)
    check("aten::embedding_renorm", weight, indices, 1.5, 2.0)
    assert not torch.equal(expected, weight)


INDICES = [
    (t(0, 2, -1),),
    (None, t(0, 3)),
    (None, None, t(0, 4).reshape(2, 1)),
    (t(0, 1), t(2, 3)),
    (t(0, 1), None, t(2, 3)),  # not adjacent: the broadcast shape comes first
    (None, t(0, 1), t(2, -3)),
    (t(0, 1).reshape(2, 1), t(1, 2, 3)),
    (torch.tensor(1), None, t(0, 2)),
    (t(2, dtype=torch.int32), t(1)),
    (t(),),
    (t(0, 1, 1, 0), t(1, 2, 2, 1), t(0, 0, 0, 0)),
]


@pytest.mark.parametrize("indices", INDICES)
def test_index(indices):
    for dtype in DTYPES:
        check("aten::index.Tensor", X.to(dtype), list(indices))
    check("aten::_unsafe_index.Tensor", X, list(indices))


@pytest.mark.parametrize("indices", INDICES)
def test_index_put(indices):
    shape = torch.ops.aten.index(X, list(indices)).shape
    values = torch.randn(shape)
    for accumulate in (False, True):
        check("aten::index_put", X, list(indices), values, accumulate)
        check("aten::index_put", X, list(indices), torch.tensor(-1.0), accumulate)
        check("aten::_unsafe_index_put", X, list(indices), values, accumulate)
        check("aten::index_put", X.to(torch.int64), list(indices), values.long(), accumulate)
        check("aten::index_put", X > 30, list(indices), values > 0, accumulate)


def test_index_put_last_write_stands():
    case = make_case("aten::index_put", [torch.zeros(3), [t(1, 1, 1)], torch.arange(3.0), False])
    np.testing.assert_array_equal(run(case)[0], [0, 2, 0])


def test_index_put_masks():
    mask = X % 3 == 0
    count = int(mask.sum())
    for accumulate in (False, True):
        check("aten::index_put", X, [mask], torch.tensor(-7.0), accumulate)
        check("aten::index_put", X, [mask], torch.randn(count), accumulate)
        check("aten::index_put", X, [mask], torch.randn(1), accumulate)
        rows = torch.tensor([True, False, True])
        check("aten::index_put", X, [rows], torch.randn(2, 4, 5), accumulate)
        check("aten::index_put", X, [rows], torch.randn(5), accumulate)
        columns = torch.tensor([True, False, True, True])
        check("aten::index_put", X, [None, columns], torch.randn(3, 3, 5), accumulate)
        check("aten::index_put", X, [None, columns], torch.randn(3, 1, 5), accumulate)
        check(
            "aten::index_put",
            X,
            [torch.zeros(3, dtype=torch.bool)],
            torch.zeros(0, 4, 5),
            accumulate,
        )


def test_mask_that_selects_is_refused():
    with pytest.raises(LoweringError, match="boolean mask"):
        run(make_case("aten::index.Tensor", [X, [X > 3]]))


def test_unsafe_masked_index():
    indices = [t(0, 2, 9), t(1, -9, 3)]
    mask = torch.tensor([[True], [True], [False]]).expand(3, 5)
    check_both("aten::_unsafe_masked_index", X, mask, indices, -1.5)
    check("aten::_unsafe_masked_index_put_accumulate", X, mask, indices, torch.randn(3, 5))


@pytest.mark.parametrize("dim", [0, -2])
def test_one_dimension(dim):
    for dtype in DTYPES:
        x = X.to(dtype)
        index = t(1, 0, 1)
        # Small integers, so that the order of rounding does not matter.
        source = torch.randint(-4, 5, x.index_select(dim, index).shape).to(dtype)
        check("aten::index_select", x, dim, index)
        check("aten::index_add", x, dim, index, source)
        if dtype != torch.bool:
            check_both("aten::index_add", x, dim, index, source, alpha=3)
        check("aten::index_copy", x, dim, t(2, 0, 1), source)
        check_both("aten::index_fill.int_Scalar", x, dim, t(1, -1), 1)
        check("aten::index_fill.int_Tensor", x, dim, index, torch.tensor(1).to(dtype))
    for reduce, include in itertools.product(("prod", "mean", "amax", "amin"), (True, False)):
        source = torch.randn(X.index_select(dim, t(1, 0, 1)).shape)
        check("aten::index_reduce", X, dim, t(1, 0, 1), source, reduce, include_self=include)


def test_zero_dimensional():
    x, index = torch.tensor(2.5), t(0)
    check("aten::index_select", x, 0, index)
    check("aten::index_add", x, 0, index, torch.tensor(3.0))
    check("aten::index_copy", x, 0, index, t(3, dtype=torch.float32))
    check("aten::index_fill.int_Scalar", x, 0, index, 4.0)
    check("aten::gather", x, 0, t(0, 0))
    check("aten::gather", x, 0, torch.tensor(0))
    check("aten::scatter.value", x, 0, torch.tensor(0), 9.0)
    check("aten::take", x, t(0, -1))


@pytest.mark.parametrize("dim", [0, -2])
def test_gather_and_scatter(dim):
    shape = (2, 3, 4)
    index = torch.randint(0, X.shape[dim], shape)
    for dtype in DTYPES:
        x, src = X.to(dtype), torch.randint(-4, 5, (3, 4, 5)).to(dtype)
        check("aten::gather", x, dim, index)
        check("aten::gather", x, dim, index.int())
        check("aten::scatter.src", x, dim, index, src)
        check_both("aten::scatter.value", x, dim, index, 1)
        check("aten::scatter_add", x, dim, index, src)
        if dtype not in (torch.float32, torch.int64):
            continue
        check("aten::scatter.reduce", x, dim, index, src, reduce="add")
        check("aten::scatter.reduce", x, dim, index, src, reduce="multiply")
        check("aten::scatter.value_reduce", x, dim, index, 2, reduce="multiply")
        for reduce, include in itertools.product(
            ("sum", "prod", "mean", "amax", "amin"), (True, False)
        ):
            check("aten::scatter_reduce.two", x, dim, index, src, reduce, include_self=include)
    check("aten::scatter_add", X, dim, torch.zeros(0, 3, 4, dtype=torch.int64), X)


def test_scatter_reduce_keeps_nan():
    src = torch.tensor([1.0, float("nan"), 2.0, 3.0])
    for reduce in ("amax", "amin", "sum"):
        check("aten::scatter_reduce.two", torch.zeros(3), 0, t(0, 0, 1, 1), src, reduce)


def test_flat_positions():
    check("aten::take", X, t(0, -1, 59, -60).reshape(2, 2))
    for accumulate in (False, True):
        check("aten::put", X, t(3, -1, 5), torch.randn(3), accumulate)
    check("aten::put", X, t(3, 3, -57), torch.ones(3), True)


def test_masked_scatter():
    mask = X % 3 == 0
    check("aten::masked_scatter", X, mask, torch.randn(30))
    check("aten::masked_scatter", X, mask[0], torch.randn(40))
    grad = torch.randn(3, 4, 5)
    check("aten::masked_scatter_backward", grad, mask, [5, 6])
    check("aten::masked_scatter_backward", grad, torch.zeros_like(mask), [4])


@pytest.mark.parametrize("right", [False, True])
def test_searching(right):
    edges = torch.tensor([1.0, 2.0, 2.0, 5.0])
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 9.0, float("nan")]])
    for int32 in (False, True):
        check("aten::bucketize.Tensor", values, edges, out_int32=int32, right=right)
        check("aten::searchsorted.Tensor", edges, values, out_int32=int32, right=right)
    check("aten::bucketize.Tensor", torch.randint(0, 9, (4,)), edges, right=right)
    check_both("aten::bucketize.Scalar", 2.0, edges, right=right)
    check_both("aten::searchsorted.Scalar", edges, 2, right=right)
    rows = torch.stack([edges, edges + 1])
    check("aten::searchsorted.Tensor", rows, values, right=right)
    check("aten::searchsorted.Tensor", rows, values, side="right" if right else "left")
    unsorted = torch.tensor([5.0, 1.0, 2.0, 2.0])
    check("aten::searchsorted.Tensor", unsorted, values, right=right, sorter=unsorted.argsort())
    check("aten::searchsorted.Tensor", torch.zeros(0), values, right=right)


M = torch.arange(20.0).reshape(5, 4)


@pytest.mark.parametrize("bad", [7, -6])
def test_errors(bad):
    (y,) = check_error("aten::embedding", M, t(1, bad))
    assert (y[0] == M[1].numpy()).all()
    check_error("aten::index.Tensor", M, [t(bad)])
    check_error("aten::index.Tensor", M, [None, t(bad)])
    (y,) = check_error("aten::index_put", M, [t(bad, 1)], torch.tensor(-1.0))
    assert (y[1] == -1).all() and (np.delete(y, 1, 0) >= 0).all()
    check_error("aten::index_put", M, [t(1), t(bad)], torch.tensor(-1.0), True)
    check_error("aten::index_select", M[0], 0, t(bad))
    check_error("aten::index_add", M[0], 0, t(bad), torch.ones(1))
    for dim in (0, 1):
        rows = M.select(dim, 0).unsqueeze(dim)
        square = torch.full((2, 2), bad)
        check_error("aten::index_select", M, dim, t(bad))
        check_error("aten::index_add", M, dim, t(bad), rows)
        check_error("aten::index_copy", M, dim, t(bad), rows)
        check_error("aten::index_fill.int_Scalar", M, dim, t(bad), 1.0)
        check_error("aten::index_reduce", M, dim, t(bad), rows, "amax")
        check_error("aten::gather", M, dim, square)
        for name, extra in (
            ("scatter.src", (M,)),
            ("scatter.value", (1.0,)),
            ("scatter_add", (M,)),
            ("scatter_reduce.two", (M, "amax")),
        ):
            (y,) = check_error(f"aten::{name}", M, dim, square, *extra)
            np.testing.assert_array_equal(y, M.numpy())
    check_error("aten::take", M, t(bad * 4))
    check_error("aten::put", M, t(bad * 4), torch.ones(1))


def test_negative_indices_that_cpu_refuses():
    check_error("aten::gather", M, 0, t(-1).reshape(1, 1))
    check_error("aten::embedding", M, t(-1))
    check_error("aten::index_select", M, 1, t(-1))


def test_too_short_source():
    check_error("aten::masked_scatter", M, M >= 0, torch.ones(3))


@pytest.mark.parametrize("bad", [3, -1])
def test_searchsorted_refuses_a_sorter_out_of_range(bad: int):
    x, sorter = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, bad])
    check_error("aten::searchsorted.Tensor", x, torch.tensor([2.0]), sorter=sorter)
