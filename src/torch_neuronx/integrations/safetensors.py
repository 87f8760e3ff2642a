"""``safetensors`` files, loaded onto the device.

``safetensors.torch.load_file(file, device="neuron")`` refuses the name: the library's list of
devices is closed. These functions have its signatures and take a neuron device:

    from torch_neuronx.integrations.safetensors import load_file, load_model

Saving needs nothing of this: ``safetensors.torch.save_file`` and ``save_model`` take neuron
tensors. The package ``safetensors`` must be installed; TorchNeuron does not require it.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_neuronx.integrations.tested import require

require("safetensors")

import safetensors.torch  # noqa: E402

__all__ = ["load_file", "load_model"]

DeviceLike = torch.device | str | int


def load_file(
    filename: str | os.PathLike[str], device: DeviceLike = "neuron", **options: Any
) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, on a device.

    Tensors are read and moved one after the other, so that the host never holds all of them.

    Args:
        filename: what to read.
        device: a neuron device ("neuron" is the current one); any other goes to ``safetensors``.
        options: further arguments of ``safetensors.torch.load_file``.

    Raises:
        FileNotFoundError: there is no such file.
        safetensors.SafetensorError: the file is damaged.
    """
    target = torch.device(device)
    if target.type != "neuron":
        return safetensors.torch.load_file(filename, device=str(target), **options)
    with safetensors.safe_open(filename, framework="pt", device="cpu", **options) as file:
        return {name: file.get_tensor(name).to(target) for name in file.keys()}  # noqa: SIM118


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: DeviceLike = "neuron",
    **options: Any,
) -> tuple[list[str], list[str]]:
    """Load a file's tensors into a model's parameters and buffers, tied ones included.

    The model stays where it is, as with ``safetensors.torch.load_model``. Tensors that go to a
    neuron device are copied there from the file by the model's own ``load_state_dict``.

    Args:
        model: what to load into.
        filename: what to read.
        strict: raise when names are missing or unexpected.
        device: where the file's tensors are put on the way; a neuron device stands for the host,
            from where they are copied into the model.
        options: further arguments of ``safetensors.torch.load_model``.

    Returns:
        Names missing in the file, and names the model does not have.

    Raises:
        RuntimeError: ``strict``, and names differ; or shapes differ.
        FileNotFoundError: there is no such file.
    """
    target = torch.device(device)
    through = "cpu" if target.type == "neuron" else str(target)
    return safetensors.torch.load_model(model, filename, strict=strict, device=through, **options)
