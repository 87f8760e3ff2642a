"""Lightning's ``Trainer`` and ``Fabric`` on the device.

Importing this module enters accelerators and strategies, all called ``neuron``, into Lightning's
registries, as its documentation asks of third parties; nothing of Lightning is replaced:

    import torch_neuronx.integrations.lightning

    Trainer(accelerator="neuron", strategy="neuron", precision="bf16-mixed")
    Fabric(accelerator="neuron", strategy="neuron", precision="bf16-mixed")

The strategy must be named too: for an accelerator that it does not know, Lightning's own default
puts the model on the CPU and, for mixed precision, casts as if on CUDA. The accelerator refuses
such a trainer. One device per trainer. The distribution ``pytorch_lightning`` has classes of its
own: ``torch_neuronx.integrations.pytorch_lightning``.
"""

from __future__ import annotations

from torch_neuronx.integrations.tested import require

require("lightning")

from lightning.fabric import accelerators as fabric_accelerators  # noqa: E402
from lightning.fabric import strategies as fabric_strategies  # noqa: E402
from lightning.fabric.plugins.precision import MixedPrecision as FabricMixed  # noqa: E402
from lightning.fabric.plugins.precision import Precision as FabricPrecision  # noqa: E402
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision, Precision  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry  # noqa: E402
from lightning.pytorch.utilities.exceptions import MisconfigurationException  # noqa: E402

from torch_neuronx.integrations.lightning_parts import (  # noqa: E402
    Devices,
    OneDevice,
    TrainerDevices,
)

__all__ = [
    "FabricNeuronAccelerator",
    "FabricNeuronStrategy",
    "NeuronAccelerator",
    "NeuronStrategy",
]


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


class FabricNeuronAccelerator(Devices, fabric_accelerators.Accelerator):
    """Neuron devices, for ``Fabric(accelerator=...)``. Stage: experimental."""

    error = MisconfigurationException


class FabricNeuronStrategy(OneDevice, fabric_strategies.SingleDeviceStrategy):
    """One neuron device, for ``Fabric(strategy=...)``; as ``NeuronStrategy``.

    Stage: experimental.
    """

    error = MisconfigurationException
    mixed = FabricMixed

    @property
    def precision(self) -> FabricPrecision:
        plugin: FabricPrecision = super().precision
        return plugin

    @precision.setter
    def precision(self, plugin: FabricPrecision | None) -> None:
        self._precision = self.for_this_device(plugin)


NeuronAccelerator.register_accelerators(AcceleratorRegistry)
NeuronStrategy.register_strategies(StrategyRegistry)
FabricNeuronAccelerator.register_accelerators(fabric_accelerators.ACCELERATOR_REGISTRY)
FabricNeuronStrategy.register_strategies(fabric_strategies.STRATEGY_REGISTRY)
