"""Compressed sparse tensors on the device: made, taken apart, converted, multiplied, as on CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.support import no_fallback

Build = Callable[[str], torch.Tensor]

_generator = torch.Generator().manual_seed(4)
DENSE = torch.randn(4, 6, generator=_generator).clamp(min=0)
RIGHT = torch.randn(6, 3, generator=_generator)
LAYOUTS = ("csr", "csc", "bsr", "bsc")


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with warnings.catch_warnings(), no_fallback():
        warnings.simplefilter("ignore")  # that they are in beta, that invariants go unchecked
        yield


def compressed(device: str, layout: str, source: str = "dense") -> torch.Tensor:
    dense = DENSE.to(device)
    tensor = {"dense": dense, "coo": dense.to_sparse(), "csr": dense.to_sparse_csr()}[source]
    blocks = ((2, 3),) if layout.startswith("b") else ()
    result: torch.Tensor = getattr(tensor, f"to_sparse_{layout}")(*blocks)
    return result


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


@pytest.mark.parametrize("source", ["dense", "coo", "csr"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversion(layout: str, source: str) -> None:
    want, got = compressed("cpu", layout, source), compressed("neuron", layout, source)
    assert got.layout == want.layout and got.device.type == "neuron"
    for g, w in zip(parts(got), parts(want), strict=True):
        assert g.device.type == "neuron"
        assert torch.equal(g.cpu(), w)
    assert torch.equal(got.to_dense().cpu(), DENSE)
    assert torch.equal(got.to_sparse().to_dense().cpu(), DENSE)
    assert torch.equal(got.cpu().to_dense(), DENSE)
    assert "neuron" in repr(got)


FUNCTIONS: dict[str, Build] = {
    "mm": lambda d: compressed(d, "csr") @ RIGHT.to(d),
    "mm of csc": lambda d: compressed(d, "csc") @ RIGHT.to(d),
    # CPU multiplies square blocks only.
    "mm of blocks": lambda d: (DENSE if d == "cpu" else compressed(d, "bsr")) @ RIGHT.to(d),
    "sparse.mm": lambda d: torch.sparse.mm(compressed(d, "csr"), RIGHT.to(d)),
    "mv": lambda d: compressed(d, "csr") @ RIGHT[:, 0].to(d),
    "addmm": lambda d: torch.addmm(
        torch.ones(4, 3).to(d), compressed(d, "csr"), RIGHT.to(d), beta=0.5, alpha=2
    ),
    "dense times csr": lambda d: RIGHT[:4].t().to(d) @ compressed(d, "csr"),
    "dense plus csr": lambda d: torch.ones(4, 6).to(d) + compressed(d, "csr"),
    "clone": lambda d: compressed(d, "csr").clone().to_dense(),
    "times a number": lambda d: (compressed(d, "csr") * 2.0).to_dense(),
    "relu": lambda d: torch.relu(compressed(d, "csr")).to_dense(),
    "sum": lambda d: compressed(d, "csr").sum(),
    "batches": lambda d: torch.stack([DENSE, DENSE]).to(d).to_sparse_csr().to_dense(),
    "given": lambda d: torch.sparse_csr_tensor([0, 2, 3], [0, 1, 2], [1.0, 2.0, 3.0], device=d)
    .to_dense(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    want, got = FUNCTIONS[name]("cpu"), FUNCTIONS[name]("neuron")
    assert got.device.type == "neuron"
    torch.testing.assert_close(got.cpu(), want, rtol=2e-5, atol=2e-5)


def test_refusal_names_the_way_out() -> None:
    csr = compressed("neuron", "csr")
    with pytest.raises(NotImplementedError, match="to_sparse"):
        csr + csr
