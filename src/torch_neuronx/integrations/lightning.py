"""Lightning's ``Trainer`` on the device.

Importing this module enters an accelerator and a strategy, both called ``neuron``, into Lightning's
registries, as its documentation asks of third parties; nothing of Lightning is replaced:

    import torch_neuronx.integrations.lightning

    Trainer(accelerator="neuron", strategy="neuron", precision="bf16-mixed")

The strategy must be named too: for an accelerator that it does not know, Lightning's own default
puts the model on the CPU and, for mixed precision, casts as if on CUDA. The accelerator refuses
such a trainer. One device per trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_neuronx.integrations.tested import require

require("lightning")

from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision, Precision  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry  # noqa: E402
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # noqa: E402

__all__ = ["NeuronAccelerator", "NeuronStrategy"]


class NeuronAccelerator(Accelerator):
    """Neuron devices, for ``Trainer(accelerator=...)``. Stage: experimental."""

    def setup_device(self, device: torch.device) -> None:
        """Makes ``device`` the current one.

        Raises:
            MisconfigurationException: the strategy runs on a device of another type.
        """
        if device.type != "neuron":
            raise MisconfigurationException(
                f"accelerator 'neuron': expected a strategy on a neuron device, got {device}. "
                "Lightning chooses the CPU for accelerators that it does not know: pass "
                "Trainer(accelerator='neuron', strategy='neuron')."
            )
        torch.neuron.set_device(device)

    def setup(self, trainer: Any) -> None:
        """Nothing to do: the device starts at its first use."""

    def teardown(self) -> None:
        torch.neuron.empty_cache()

    @staticmethod
    def parse_devices(devices: int | str | Sequence[int]) -> list[int]:
        """Device indices of ``Trainer(devices=...)``: a count ("-1" or -1: all), a list of indices,
        or indices as text, "0,1".

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
            raise MisconfigurationException(
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

    def get_device_stats(self, device: str | int | torch.device) -> dict[str, Any]:
        """``torch.neuron.memory_stats`` of the device: numbers, in bytes or counts."""
        stats: dict[str, Any] = torch.neuron.memory_stats(device)
        return {k: v for k, v in stats.items() if isinstance(v, (int, float))}

    @classmethod
    def register_accelerators(cls, accelerator_registry: Any) -> None:
        accelerator_registry.register(
            cls.name(), cls, description="Neuron device of TorchNeuron", override=True
        )


class NeuronStrategy(SingleDeviceStrategy):
    """Training on one neuron device, for ``Trainer(strategy=...)``.

    Mixed precision casts for this device, and loss scaling of "16-mixed" happens on it.

    Args:
        device: which; by default the first of ``Trainer(devices=...)``.

    Stage: experimental.
    """

    strategy_name = "neuron"

    def __init__(self, device: torch.device | str | int | None = None, **options: Any) -> None:
        chosen = torch.device("neuron", device) if isinstance(device, int) else device
        self._devices: list[torch.device] = [] if chosen is None else [torch.device(chosen)]
        super().__init__(device="neuron" if chosen is None else chosen, **options)

    @property
    def parallel_devices(self) -> list[torch.device]:
        """The device, as a list; Lightning sets it from its accelerator if it is empty."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1:
            raise MisconfigurationException(
                f"strategy 'neuron': expected one device, got {len(devices)}. Pass devices=1 or "
                "the index of one, devices=[1]."
            )
        self._devices = devices
        self._root_device = devices[0]

    @property
    def precision_plugin(self) -> Precision:
        plugin: Precision = super().precision_plugin
        return plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        # The trainer makes this plugin for CUDA whatever the accelerator, but for two it knows.
        if type(plugin) is MixedPrecision and plugin.device == "cuda":
            plugin = MixedPrecision(plugin.precision, device="neuron")
        self._precision_plugin = plugin

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        strategy_registry.register(
            cls.strategy_name, cls, description="One neuron device", override=True
        )


NeuronAccelerator.register_accelerators(AcceleratorRegistry)
NeuronStrategy.register_strategies(StrategyRegistry)
