"""The ``Trainer`` of the distribution ``pytorch_lightning`` on the device.

``pytorch_lightning`` and ``lightning.pytorch`` are the same code in two packages, whose classes and
registries do not know each other: import the integration of the package that you import.

    import torch_neuronx.integrations.pytorch_lightning

    Trainer(accelerator="neuron", strategy="neuron", precision="bf16-mixed")

All else is as in ``torch_neuronx.integrations.lightning``.
"""

from __future__ import annotations

from torch_neuronx.integrations.tested import require

require("pytorch-lightning")

from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry  # noqa: E402
from pytorch_lightning.plugins.precision import MixedPrecision, Precision  # noqa: E402
from pytorch_lightning.strategies import SingleDeviceStrategy, StrategyRegistry  # noqa: E402
from pytorch_lightning.utilities.exceptions import MisconfigurationException  # noqa: E402

from torch_neuronx.integrations.lightning_parts import OneDevice, TrainerDevices  # noqa: E402

__all__ = ["NeuronAccelerator", "NeuronStrategy"]


class NeuronAccelerator(TrainerDevices, Accelerator):
    """Neuron devices, for ``Trainer(accelerator=...)``. Stage: experimental."""

    error = MisconfigurationException


class NeuronStrategy(OneDevice, SingleDeviceStrategy):
    """Training on one neuron device, for ``Trainer(strategy=...)``.

    Mixed precision casts for this device, and loss scaling of "16-mixed" happens on it.

    Args:
        device: which; by default the first of ``Trainer(devices=...)``.

    Stage: experimental.
    """

    error = MisconfigurationException
    mixed = MixedPrecision

    @property
    def precision_plugin(self) -> Precision:
        plugin: Precision = super().precision_plugin
        return plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        self._precision_plugin = self.for_this_device(plugin)


NeuronAccelerator.register_accelerators(AcceleratorRegistry)
NeuronStrategy.register_strategies(StrategyRegistry)
