"""Writes through conjugate and negative views reach the base."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "element": lambda x: x.conj().__setitem__(0, 7),
    "mul": lambda x: x.conj().mul_(2j),
    "fill": lambda x: x.conj().fill_(3 + 1j),
    "copy": lambda x: x.conj().copy_(x.clone() + 1),
    "imaginary_part": lambda x: x.conj().imag.add_(1),
    "adjoint": lambda x: x.mH.zero_(),
    "out": lambda x: torch.add(torch.ones_like(x), 1j, out=x.conj()),
    "slice": lambda x: x.conj()[1:, :1].sub_(1j),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_through_the_view_changes_the_base(name: str) -> None:
    expected = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -2 + 0j]])
    got = expected.to("neuron")
    before = got.cpu()
    WRITES[name](expected)
    WRITES[name](got)
    assert torch.equal(got.cpu(), expected)
    assert not torch.equal(expected, before)


def test_conj_physical_in_place() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    for view in (x, x.conj(), x.mT, x[:, :0]):
        expected = view.clone().conj_physical_()
        assert torch.equal(view.clone().to("neuron").conj_physical_().cpu(), expected)
        lazy = view.clone().to("neuron").conj().conj_physical_()
        assert torch.equal(lazy.cpu(), view.clone().conj().conj_physical_())
    real = torch.randn(3).to("neuron")
    assert real.conj_physical_() is real
