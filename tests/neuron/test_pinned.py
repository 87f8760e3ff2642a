"""Pinned host memory: ``pin_memory()``, DataLoader, and copies from it."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader


def test_pinned_tensors_are_known_as_pinned_and_so_are_their_views() -> None:
    pinned = torch.arange(12.0).reshape(3, 4).pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:, 2].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.empty(3).is_pinned()
    assert pinned.data_ptr() % 64 == 0


def test_a_copy_from_pinned_memory_reads_it_before_it_is_written_again() -> None:
    pinned = torch.arange(1000.0).pin_memory()
    copies = []
    for step in range(10):
        pinned.fill_(step)
        copies.append(pinned.to("neuron", non_blocking=True))
    assert [c.unique().tolist() for c in (x.cpu() for x in copies)] == [[s] for s in range(10)]


def test_data_loader_pins_batches() -> None:
    data = [torch.full((2,), float(i)) for i in range(4)]
    batches = list(DataLoader(data, batch_size=2, pin_memory=True))
    assert all(b.is_pinned() for b in batches)
    assert torch.equal(torch.cat([b.to("neuron").cpu() for b in batches]), torch.stack(data))
