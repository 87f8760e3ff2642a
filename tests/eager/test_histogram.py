"""histogram, histogramdd and nonzero_static run on the device and give CPU's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support import assert_same, no_fallback, to_device

X = torch.tensor([0.1, 0.4, 0.4, 1.0, -2.0, 2.0, 0.9, float("nan"), 7.0])
WEIGHT = torch.arange(9.0) - 3
EDGES = torch.tensor([-2.0, 0.0, 0.4, 1.0, 2.0])
POINTS = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) * 4 - 1


def same(function: Any, *args: Any, **kwargs: Any) -> None:
    expected = function(*args, **kwargs)
    with no_fallback():
        got = function(*to_device(args), **to_device(kwargs))
    assert_same(tuple(got), tuple(expected))


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_histogram(weight: torch.Tensor | None, density: bool) -> None:
    same(torch.histogram, X, EDGES, weight=weight, density=density)
    same(torch.histogram, X, 4, range=(-2.0, 2.0), weight=weight, density=density)
    same(torch.histogram, X[:7], 5, weight=None if weight is None else weight[:7], density=density)


def test_edge_cases() -> None:
    same(torch.histogram, torch.empty(0), 3)
    same(torch.histogram, torch.full((4,), 2.0), 2)  # no range: half a unit to both sides
    same(torch.histogram, X[:6].reshape(2, 3), EDGES)
    same(torch.histogram, X[:7].double() / 3, 5)  # the extremes are in the outer bins


def test_out() -> None:
    hist, edges = torch.empty(0, device="neuron"), torch.empty(0, device="neuron")
    with no_fallback():
        torch.histogram(X.to("neuron"), EDGES.to("neuron"), out=(hist, edges))
    assert_same((hist, edges), tuple(torch.histogram(X, EDGES)))
    with pytest.raises(RuntimeError, match="same device"):
        torch.histogram(X.to("neuron"), EDGES.to("neuron"), out=(hist, torch.empty(0)))


@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(density: bool) -> None:
    def flat(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        hist, edges = torch.histogramdd(*args, **kwargs)
        return hist, *edges

    same(flat, POINTS, [3, 2], density=density)
    same(flat, POINTS, [3, 2], range=[-1.0, 3.0, 0.0, 2.0], density=density)
    same(flat, POINTS, [EDGES, EDGES[:3]], weight=torch.arange(20.0), density=density)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((X, 3), "is not finite"),
        ((X[:3], 0), "bins must be > 0"),
        ((X[:3], EDGES.double()), "same dtype"),
        ((X[:3], EDGES.reshape(1, 5)), "one dimension"),
    ],
)
def test_refusals(args: tuple[Any, ...], text: str) -> None:
    for given in (args, to_device(args)):
        with pytest.raises(RuntimeError, match=text):
            torch.histogram(*given)


@pytest.mark.parametrize("size", [0, 2, 3, 7])
def test_nonzero_static(size: int) -> None:
    x = torch.tensor([[0, 3, 0], [1, 0, 2]])
    with no_fallback():
        got = torch.nonzero_static(x.to("neuron"), size=size, fill_value=-9)
    # The strides are CUDA's, which PyTorch's meta kernel knows.
    assert_same(got, torch.nonzero_static(x, size=size, fill_value=-9), strides=False)
