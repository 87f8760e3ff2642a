"""Every function that takes a device refuses one that is not there; none reads past the devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import output_of
from torch_neuronx import _C, dlpack

DEVICE_TYPE = torch.neuron.current_stream().device_type

# What takes a device, by name: through torch itself, through torch.neuron, and the binding beneath.
TORCH: dict[str, Callable[[int], Any]] = {
    "synchronize": torch.accelerator.synchronize,
    "current_stream": torch.accelerator.current_stream,
    "set_device_index": torch.accelerator.set_device_index,
    "get_device_capability": torch.accelerator.get_device_capability,
    "memory_stats": torch.accelerator.memory_stats,
    "memory_info": torch.accelerator.get_memory_info,
    "reset_peak": torch.accelerator.reset_peak_memory_stats,
    "reset_accumulated": torch.accelerator.reset_accumulated_memory_stats,
    "stream": lambda i: torch.Stream(device=f"neuron:{i}"),
    "stream_by_number": lambda i: of_number(i).query(),
    "stream_synchronize": lambda i: of_number(i).synchronize(),
    "stream_record": lambda i: of_number(i).record_event(),
    "set_stream": lambda i: torch.accelerator.set_stream(of_number(i)),
    "generator": lambda i: torch.Generator(f"neuron:{i}"),
    "empty": lambda i: torch.empty(1, device=f"neuron:{i}"),
    "dlpack": lambda i: dlpack.from_dlpack(torch.ones(1), device=f"neuron:{i}"),
    "binding_synchronize": _C.synchronize,
    "binding_queued": _C.num_queued,
    "binding_stats": _C.memory_stats,
    "binding_alloc": lambda i: _C.raw_alloc(8, i),
    "binding_generator": _C.default_generator,
    "binding_import": lambda i: _C.import_read_only(torch.ones(1), i),
    "binding_priority": lambda i: _C.stream_priority(i, 0),
}
NEURON = [
    "synchronize",
    "get_device_properties",
    "get_device_name",
    "get_device_capability",
    "memory_stats",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "memory_summary",
    "mem_get_info",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "current_stream",
    "default_stream",
    "get_rng_state",
]


def of_number(device: int) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=device, device_type=DEVICE_TYPE)


@pytest.mark.parametrize("name", TORCH)
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"invalid device ordinal: neuron:7 \(this process has"):
        TORCH[name](7)
    assert torch.neuron.current_device() == 0


@pytest.mark.parametrize("index", [7, 300, 1 << 20])
@pytest.mark.parametrize("name", NEURON)
def test_torch_neuron_refuses_a_device_that_is_not_there(name: str, index: int) -> None:
    with pytest.raises((AssertionError, IndexError), match=f"neuron:{index} "):
        getattr(torch.neuron, name)(index)


@pytest.mark.parametrize("index", [-2, -3, -sys.maxsize])
@pytest.mark.parametrize("name", NEURON)
def test_negative_devices(name: str, index: int) -> None:
    with pytest.raises(AssertionError, match=f"Invalid device id: neuron:{index} "):
        getattr(torch.neuron, name)(index)


@pytest.mark.parametrize("name", NEURON)
def test_minus_one_is_the_current_device(name: str) -> None:
    getattr(torch.neuron, name)(-1)


def test_devices_that_are_not_there_before_anything_started() -> None:
    text = output_of(
        """
        import torch
        for call in (
            # torch.accelerator.synchronize asks no device that is not started, CUDA's neither.
            torch.accelerator.current_stream, torch.accelerator.reset_peak_memory_stats,
            torch.neuron.synchronize, torch.neuron.current_stream, torch.neuron.default_stream,
        ):
            try:
                call(7)
                print("not raised", call)
            except (RuntimeError, AssertionError) as error:
                print("neuron:7 (this process has 1" in str(error))
        """
    )
    assert text.splitlines() == ["True"] * 5


def test_what_belongs_to_another_device() -> None:
    text = output_of(
        """
        import torch
        def refused(call, kind=RuntimeError):
            try:
                call()
                print("not raised")
            except kind as error:
                print(error)

        first = torch.Event("neuron", enable_timing=True)
        second = torch.Event("neuron", enable_timing=True)
        first.record(torch.neuron.current_stream(0))
        second.record(torch.neuron.current_stream(1))
        torch.neuron.synchronize(0), torch.neuron.synchronize(1)
        refused(lambda: first.elapsed_time(second))
        refused(lambda: first.record(torch.neuron.current_stream(1)))
        print(first.device, first.query())
        first.record(torch.neuron.Stream(0))
        torch.neuron.current_stream(1).wait_event(first)
        other = torch.Generator("neuron:1")
        refused(lambda: torch.randn(2, device="neuron:0", generator=other))
        refused(lambda: torch.ones(2, device="neuron:0").uniform_(generator=other))
        print(torch.randn(2, device="neuron:1", generator=other).device)
        torch.neuron.set_device(1)
        print(torch.randn(2, device="neuron", generator=torch.Generator("neuron")).device)
        """,
        TORCH_NEURONX_NUM_DEVICES="2",
    )
    lines = text.splitlines()
    assert lines[0].startswith(
        "elapsed_time needs two events of one device, got events of neuron:0"
    )
    assert lines[1].startswith("Event device 0 does not match recording stream's device 1")
    assert lines[2] == "neuron:0 True"
    for line in lines[3:5]:
        assert line.startswith("Expected a 'neuron:0' generator device but found 'neuron:1'")
    assert lines[5:] == ["neuron:1", "neuron:1"]
