"""What Lightning's accelerators and strategies for the device are made of.

Lightning is in two distributions (``lightning`` and ``pytorch_lightning``), and its ``Trainer`` and
``Fabric`` have base classes and registries of their own: these classes come without a base, and
each integration adds them to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Devices:
    """The methods of an accelerator. ``error`` is Lightning's MisconfigurationException."""

    error: type[Exception]

    def setup_device(self, device: torch.device) -> None:
        """Makes ``device`` the current one.

        Raises:
            MisconfigurationException: the strategy runs on a device of another type.
        """
        if device.type != "neuron":
            raise self.error(
                f"accelerator 'neuron': expected a strategy on a neuron device, got {device}. "
                "Lightning chooses the CPU for accelerators that it does not know: pass "
                "accelerator='neuron', strategy='neuron'."
            )
        torch.neuron.set_device(device)

    def teardown(self) -> None:
        torch.neuron.empty_cache()

    @classmethod
    def parse_devices(cls, devices: int | str | Sequence[int]) -> list[int]:
        """Device indices of ``devices=...``: a count ("-1" or -1: all), a list of indices, or
        indices as text, "0,1".

        Raises:
            MisconfigurationException: more devices than there are, or none.
        """
        count = torch.neuron.device_count()
        if isinstance(devices, str):
            parts = [part for part in devices.split(",") if part.strip()]
            many = "," in devices
            devices = [int(part) for part in parts] if many else int(devices)
        if isinstance(devices, int):
            chosen = list(range(count if devices == -1 else devices))
        else:
            chosen = list(devices)
        if not chosen or any(not 0 <= index < count for index in chosen):
            raise cls.error(
                f"devices: expected some of the neuron devices 0 to {count - 1}, got {devices!r}"
            )
        return chosen

    @staticmethod
    def get_parallel_devices(devices: Sequence[int]) -> list[torch.device]:
        return [torch.device("neuron", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        """One: a strategy for several devices is not there."""
        return 1

    @staticmethod
    def is_available() -> bool:
        return bool(torch.neuron.is_available())

    @staticmethod
    def name() -> str:
        return "neuron"

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        accelerator_registry.register(
            cls.name(), cls, description="Neuron device of TorchNeuron", override=True
        )


class TrainerDevices(Devices):
    """What a ``Trainer`` asks of its accelerator beside."""

    def setup(self, trainer: Any) -> None:
        """Nothing to do: the device starts at its first use."""

    def get_device_stats(self, device: str | int | torch.device) -> dict[str, Any]:
        """``torch.neuron.memory_stats`` of the device: numbers, in bytes or counts."""
        stats: dict[str, Any] = torch.neuron.memory_stats(device)
        return {k: v for k, v in stats.items() if isinstance(v, (int, float))}


class OneDevice:
    """The methods of a strategy on one device, before those of ``SingleDeviceStrategy``.

    ``error`` is Lightning's MisconfigurationException, ``mixed`` its plug-in of mixed precision,
    which Lightning makes for CUDA whatever the accelerator, but for two that it knows.
    """

    strategy_name = "neuron"
    error: type[Exception]
    mixed: type[Any]

    def __init__(self, device: torch.device | str | int | None = None, **options: Any) -> None:
        chosen = torch.device("neuron", device) if isinstance(device, int) else device
        self._devices: list[torch.device] = [] if chosen is None else [torch.device(chosen)]
        super().__init__(device="neuron" if chosen is None else chosen, **options)  # type: ignore[call-arg]

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device, as a list; Lightning sets it from its accelerator if it is empty."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1:
            raise self.error(
                f"strategy 'neuron': expected one device, got {len(devices)}. Pass devices=1 or "
                "the index of one, devices=[1]."
            )
        self._devices = devices
        self._root_device = devices[0]

    def for_this_device(self, plugin: Any) -> Any:
        """A precision plug-in that casts, and scales losses, on this device."""
        if type(plugin) is self.mixed and plugin.device == "cuda":
            return self.mixed(plugin.precision, device="neuron")
        return plugin

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        strategy_registry.register(
            cls.strategy_name, cls, description="One neuron device", override=True
        )
