"""Random state of the devices (decision D9). The CPU generator is never touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from torch_neuronx import _C
from torch_neuronx.neuron.device import DeviceLike, current_device, device_count, index_of


class _Generators(Sequence[torch.Generator]):
    """``torch.neuron.default_generators``: one a device, made when first asked for."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: int) -> torch.Generator:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(f"neuron:{index} of {len(self)} device(s)")
        return _C.default_generator(index)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


def get_rng_state(device: DeviceLike = "neuron") -> torch.Tensor:
    """State of a device's generator: 16 bytes (seed, offset) as a CPU uint8 tensor."""
    return default_generators[index_of(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "neuron") -> None:
    """Set a device's generator to what ``get_rng_state`` gave."""
    default_generators[index_of(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices."""
    return [g.get_state() for g in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of the devices, the first state that of device 0.

    Raises:
        IndexError: there are more states than devices.
    """
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's generator."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator with a random number."""
    default_generators[current_device()].seed()


def seed_all() -> None:
    """Seed every device's generator with one random number."""
    value = default_generators[0].seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """Seed of the current device's generator."""
    return default_generators[current_device()].initial_seed()


# Names that torch's own code looks for on an accelerator's module.


def _get_generator(device: DeviceLike) -> torch.Generator:
    return default_generators[index_of(device)]


def _get_rng_state_offset(device: DeviceLike = "neuron") -> int:
    return _get_generator(device).get_offset()


def _set_rng_state_offset(offset: int, device: DeviceLike = "neuron") -> None:
    _get_generator(device).set_offset(offset)
