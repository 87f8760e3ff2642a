"""Pinned host memory: ``pin_memory()``, DataLoader, and copies from it."""

from __future__ import annotations

import pytest
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


def test_data_loader_pins_what_its_workers_made() -> None:
    torch.ones(1, device="neuron")
    data = [torch.full((2,), float(i)) for i in range(4)]
    loader = DataLoader(data, batch_size=2, num_workers=1, pin_memory=True)
    batches = list(loader)
    assert all(b.is_pinned() for b in batches)
    assert torch.equal(torch.cat([b.to("neuron").cpu() for b in batches]), torch.stack(data))


def test_pinned_memory_is_counted_cached_and_given_back() -> None:
    torch.accelerator.empty_host_cache()
    torch.neuron.reset_accumulated_host_memory_stats()
    before = torch.neuron.host_memory_stats()
    pinned = torch.empty(5000, dtype=torch.uint8, pin_memory=True)
    address = pinned.data_ptr()
    stats = torch.neuron.host_memory_stats()
    for name in ("active_bytes", "allocated_bytes"):
        assert stats[f"{name}.current"] - before[f"{name}.current"] == 8192  # a power of two
    assert stats["num_host_alloc"] == 1 and stats["host_alloc_time.count"] >= 1
    del pinned
    stats = torch.neuron.host_memory_stats()
    assert stats["active_bytes.current"] == before["active_bytes.current"]
    assert stats["allocated_bytes.current"] - before["allocated_bytes.current"] == 8192
    again = torch.empty(8000, dtype=torch.uint8, pin_memory=True)
    assert again.data_ptr() == address
    assert torch.neuron.host_memory_stats()["num_host_alloc"] == 1
    del again
    torch.accelerator.empty_host_cache()
    stats = torch.neuron.host_memory_stats()
    assert stats["allocated_bytes.current"] == before["active_bytes.current"]
    assert stats["num_host_free"] == 1
    torch.neuron.reset_peak_host_memory_stats()
    nested = torch.neuron.host_memory_stats_as_nested_dict()
    assert nested["active_bytes"]["peak"] == nested["active_bytes"]["current"]


def test_pinned_memory_that_nobody_has() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="pinned host memory"):
        torch.empty(1 << 60, dtype=torch.uint8, pin_memory=True)


def test_a_copy_to_pinned_memory_does_not_wait_for_the_device() -> None:
    a = torch.randn(1200, 1200, device="neuron") / 40
    torch.neuron.synchronize()

    def work() -> torch.Tensor:
        b = a
        for _ in range(20):
            b = b @ a
        return b

    expected = work().cpu()
    running = False
    for _ in range(5):  # a busy machine may run this thread only after the device's
        pinned = torch.zeros(1200, 1200).pin_memory()
        pinned.copy_(work(), non_blocking=True)
        running = not torch.neuron.current_stream().query()
        torch.neuron.synchronize()
        assert torch.equal(pinned, expected)
        if running:
            break
    assert running


def test_copies_to_pinned_memory_are_complete_with_their_stream() -> None:
    x = torch.arange(12.0, device="neuron").reshape(3, 4)
    results = []
    for _ in range(10):
        x.add_(1)  # may not write into what is being copied
        results.append(x.to("cpu", non_blocking=True))
        results.append(x.t().to("cpu", non_blocking=True))
        results.append(x.to("cpu", torch.int64, non_blocking=True))
    assert all(r.is_pinned() for r in results if r.dtype == torch.float32)
    event = torch.neuron.Event()
    event.record()
    event.synchronize()
    for step in range(10):
        expected = torch.arange(12.0).reshape(3, 4) + step + 1
        plain, transposed, cast = results[3 * step : 3 * step + 3]
        assert torch.equal(plain, expected)
        assert torch.equal(transposed, expected.t())
        assert torch.equal(cast, expected.long())


def test_pinned_memory_stays_while_a_copy_is_on_its_way() -> None:
    x = torch.ones(600, 600, device="neuron") / 600
    for _ in range(10):
        y = x @ x @ x
        pinned = torch.empty(600, 600, pin_memory=True)
        pinned.copy_(y, non_blocking=True)
        del pinned  # its block must not be given away before the copy is over
        other = torch.full((600, 600), 7.0).pin_memory()
        torch.neuron.synchronize()
        assert bool((other == 7).all())
