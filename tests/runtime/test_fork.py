"""A child forked after the runtime started must refuse the device, however it was started."""

from __future__ import annotations

import pytest

from support import output_of

CHILD = """
import os
import torch
{start}
print(torch.neuron.is_initialized(), flush=True)
child = os.fork()
if child == 0:
    try:
        torch.ones(2, device="neuron")
    except RuntimeError as error:
        print(error, flush=True)
    torch.manual_seed(0)  # what a DataLoader's worker does
    print(torch.rand(2).device, torch.neuron.is_initialized(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1] == 0, (torch.ones(2, device="neuron") + 1).tolist())
"""


# The second reaches C++ first, the others Python.
STARTS = (
    'torch.ones(2, device="neuron")',
    'torch.ops.aten.empty.memory_format([2], device=torch.device("neuron"))',
    "torch.neuron.init()",
)


@pytest.mark.parametrize("start", STARTS)
def test_forked_child_cannot_use_the_device(start: str) -> None:
    started, refused, child, parent = output_of(CHILD.format(start=start)).splitlines()
    assert started == "True"
    assert "Cannot re-initialize the neuron device in a forked subprocess" in refused
    assert "spawn" in refused
    assert child == "cpu False"
    assert parent == "True [2.0, 2.0]"


MEMORY_CHILD = """
import os
import torch
x = torch.ones(2000, device="neuron")
pinned = torch.ones(3).pin_memory()
child = os.fork()
if child == 0:
    neuron = torch.neuron
    print(neuron._is_in_bad_fork(), neuron.memory_stats()["allocated_bytes"]["peak"])
    neuron.empty_cache()
    neuron.reset_peak_memory_stats()
    print(torch.accelerator.memory_allocated(), len(neuron.memory_snapshot()), flush=True)
    for ask in (neuron.mem_get_info, lambda: neuron.caching_allocator_alloc(8)):
        try:
            ask()
        except RuntimeError as error:
            print("Cannot re-initialize" in str(error), flush=True)
    del x, pinned
    os._exit(0)
print(os.waitpid(child, 0)[1] == 0, torch.neuron.memory_allocated() >= 8000)
"""


def test_memory_in_a_forked_child_is_not_touched() -> None:
    stats, accelerator, info, raw, parent = output_of(MEMORY_CHILD).splitlines()
    assert stats == "True 0"
    assert accelerator == "0 0"
    assert info == raw == "True"
    assert parent == "True True"
