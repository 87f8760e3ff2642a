"""Distances between rows and their gradients, for the p-norms that have forms of their own."""

import pytest
import torch
from tests.lowering.harness import check

NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]


@pytest.mark.parametrize("p", NORMS)
def test_cdist(p: float) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    a[0, 1] = b[0, 2]  # a distance of zero has no slope
    check("aten::_cdist_forward", a, b, p, None)
    distance = torch.ops.aten._cdist_forward(a, b, p, None)
    check("aten::_cdist_backward", torch.randn(2, 4, 5), a, b, p, distance)


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_cdist_through_products(mode: int | None) -> None:
    torch.manual_seed(0)
    check("aten::_cdist_forward", torch.randn(30, 6), torch.randn(4, 6), 2.0, mode, atol=1e-4)


def test_cdist_broadcasts_and_is_empty() -> None:
    torch.manual_seed(0)
    check("aten::_cdist_forward", torch.randn(2, 1, 4, 3), torch.randn(5, 2, 3), 1.0, None)
    check("aten::_cdist_forward", torch.randn(4, 0), torch.randn(2, 0), 2.0, None)
    check("aten::_cdist_forward", torch.randn(0, 3), torch.randn(2, 3), 2.0, None)


@pytest.mark.parametrize("p", NORMS)
def test_pdist(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    x[3] = x[1]
    check("aten::_pdist_forward", x, p)
    distance = torch.ops.aten._pdist_forward(x, p)
    check("aten::_pdist_backward", torch.randn(10), x, p, distance)


def test_pdist_of_one_row() -> None:
    check("aten::_pdist_forward", torch.randn(1, 3), 2.0)
