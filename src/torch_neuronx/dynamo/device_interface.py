"""What Dynamo asks of a device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.device_interface import (
    DeviceInterface,
    get_interface_for_device,
    register_interface_for_device,
)

from torch_neuronx import neuron


class NeuronInterface(DeviceInterface):
    """``torch._dynamo``'s view of ``torch.neuron``."""

    device = neuron.device
    Event = neuron.Event
    Stream = neuron.Stream

    class Worker:
        """Compile workers: the device is whatever is current."""

        @staticmethod
        def set_device(device: int) -> None:
            neuron.set_device(device)

        @staticmethod
        def current_device() -> int:
            return neuron.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return neuron.get_device_properties(device)

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    get_device_properties = staticmethod(neuron.get_device_properties)
    get_compute_capability = staticmethod(neuron.get_device_capability)
    memory_allocated = staticmethod(neuron.memory_allocated)
    is_bf16_supported = staticmethod(neuron.is_bf16_supported)

    @staticmethod
    def exchange_device(device: int) -> int:
        before = neuron.current_device()
        neuron.set_device(device)
        return before

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return neuron.current_device() if device < 0 else NeuronInterface.exchange_device(device)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return 0

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        raise RuntimeError("the neuron device does not run Triton kernels")


@functools.cache
def register() -> None:
    """Register the interface for ``neuron`` and ``neuron:i``, once."""
    # torch's own lazy registration must have run before, or it would replace ours.
    get_interface_for_device("cpu")
    register_interface_for_device("neuron", NeuronInterface)
    for index in range(neuron.device_count()):
        register_interface_for_device(f"neuron:{index}", NeuronInterface)
