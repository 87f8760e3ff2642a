"""Writes to expanded tensors: taken where CPU takes them, refused where it refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")

Write = Callable[[torch.Tensor], object]


def _places(t: torch.Tensor, *places: int) -> torch.Tensor:
    return torch.tensor(places, device=t.device)


def _assign_by_mask(t: torch.Tensor) -> None:
    t[t == 0] = 1.0


def _assign_by_index(t: torch.Tensor) -> None:
    t[_places(t, 0, 2)] = 1.0


def _corner(t: torch.Tensor) -> torch.Tensor:
    """A mask that is true in one element of the many that show the same memory."""
    return torch.tensor([[False] * 3, [False, True, False], [False] * 3], device=t.device)


def _ones(t: torch.Tensor, *sizes: int) -> torch.Tensor:
    return torch.ones(sizes, device=t.device)


TAKEN: dict[str, Write] = {
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(2.0),
    "assignment by mask": _assign_by_mask,
    "assignment by index": _assign_by_index,
    "masked_fill_": lambda t: t.masked_fill_(t == 0, 2.0),
    "masked_fill_ of one element": lambda t: t.masked_fill_(_corner(t), 2.0),
    "masked_fill_ of a tensor": lambda t: t.masked_fill_(_corner(t), _ones(t).sum()),
    "index_fill_ of rows": lambda t: t.index_fill_(0, _places(t, 1), 2.0),
    "index_fill_ of a column": lambda t: t.index_fill_(1, _places(t, 0), 2.0),
    "index_put_": lambda t: t.index_put_((_places(t, 0, 1),), _ones(t)),
    "_foreach_zero_": lambda t: torch._foreach_zero_([t]),
    "triu_": lambda t: t.triu_(),
    "tril_": lambda t: t.tril_(),
    "full": lambda t: torch.full((3, 3), 2.0, out=t),
    "zeros": lambda t: torch.zeros(3, 3, out=t),
    "ones": lambda t: torch.ones(3, 3, out=t),
    "amax": lambda t: torch.amax(_ones(t, 2, 3, 3), 0, out=t),
    "var": lambda t: torch.var(_ones(t, 2, 3, 3), 0, out=t),
    "triu into another": lambda t: torch.triu(_ones(t, 3, 3) - 1, out=t),
    "nn.init.zeros_": lambda t: torch.nn.init.zeros_(t),
    "nn.init.constant_": lambda t: torch.nn.init.constant_(t, 2.0),
}
TARGETS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda base: base.expand(3, 3),
    "rows": lambda base: base.t().expand(3, 3),
    "one element": lambda base: base[1:2].expand(3, 3),
}


@pytest.mark.parametrize("start", [0.0, float("nan")])
@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_on_cpu(name: str, start: float) -> None:
    for target in TARGETS.values():
        expected, base = torch.full((3, 1), start), torch.full((3, 1), start, device="neuron")
        TAKEN[name](target(expected))
        TAKEN[name](target(base))
        assert torch.equal(base.cpu().nan_to_num(-7), expected.nan_to_num(-7))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64])
def test_what_is_written_replaces_what_was_there_in_every_dtype(dtype: torch.dtype) -> None:
    for device in ("cpu", "neuron"):
        base = torch.zeros(2, 1, dtype=dtype, device=device)
        seen = base.expand(2, 4)
        seen.index_fill_(1, torch.tensor([2], device=device), 1)
        assert base.tolist() == [[1], [1]]


REFUSED: dict[str, Write] = {
    "add_": lambda t: t.add_(1),
    "fill_ of a tensor": lambda t: t.fill_(_ones(t).sum()),
    "copy_": lambda t: t.copy_(_ones(t, 3, 3)),
    "uniform_": lambda t: t.uniform_(),
    "masked_scatter_": lambda t: t.masked_scatter_(t == 0, _ones(t, 9)),
    "scatter_": lambda t: t.scatter_(0, _places(t, 0, 0, 0)[None], 1.0),
    "index_copy_": lambda t: t.index_copy_(0, _places(t, 0), _ones(t, 1, 3)),
    "cumsum": lambda t: torch.cumsum(_ones(t, 3, 3), 0, out=t),
    "mean": lambda t: torch.mean(_ones(t, 2, 3, 3), 0, out=t),
    "cat": lambda t: torch.cat([_ones(t, 3, 3)], out=t),
    "_foreach_add_": lambda t: torch._foreach_add_([t], 1.0),
    "_foreach_copy_": lambda t: torch._foreach_copy_([t], [_ones(t, 3, 3)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_cpu(name: str) -> None:
    for device in ("cpu", "neuron"):
        base = torch.zeros(3, 1, device=device)
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            REFUSED[name](base.expand(3, 3))
        if device == "neuron":  # CPU's `mean` has written a sum when it raises
            assert base.tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("name", ["sum", "prod", "norm"])
def test_accumulating_reductions_give_what_they_give_elsewhere(name: str) -> None:
    # CPU takes these too, but adds up in the result's memory once for each time it is shown.
    x = torch.tensor([[2.0], [3.0]], device="neuron").expand(2, 3)
    seen = torch.ones(1, device="neuron").expand(3)
    if name == "norm":
        torch.linalg.vector_norm(x, 2, 0, out=seen)
    else:
        getattr(torch, name)(x, 0, out=seen)
    expected = {"sum": 5.0, "prod": 6.0, "norm": 13**0.5}[name]
    assert seen.tolist() == pytest.approx([expected] * 3, rel=1e-6)


def test_an_accumulating_index_put_is_refused() -> None:
    base = torch.zeros(3, 1, device="neuron")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        base.expand(3, 3).index_put_((_places(base, 0),), _ones(base), accumulate=True)
    assert base.tolist() == [[0], [0], [0]]
