"""Which adapter serves a device string."""

from __future__ import annotations

from neuron_readiness.adapters.accelerator import AcceleratorAdapter, CudaAdapter
from neuron_readiness.adapters.base import Adapter
from neuron_readiness.adapters.cpu import CpuAdapter
from neuron_readiness.adapters.neuron import NeuronAdapter

_KINDS: dict[str, type[Adapter]] = {
    "cpu": CpuAdapter,
    "cuda": CudaAdapter,
    "neuron": NeuronAdapter,
}


def adapter_for(device: str) -> Adapter:
    """The adapter of ``cpu``, ``cuda:1``, ``neuron`` ...; any other device of torch gets the
    general one."""
    return _KINDS.get(device.split(":")[0], AcceleratorAdapter)(device)
