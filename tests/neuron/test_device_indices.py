"""Every function that takes a device refuses one that is not there; none reads past the devices."""

from __future__ import annotations

import sys

import pytest
import torch

# What takes a device, by name.
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
