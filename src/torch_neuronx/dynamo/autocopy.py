"""CPU tensors given to a compiled function: copied to the device at each call, or refused.

As in TorchNeuron, results then lie on the device; TORCH_NEURONX_RETAIN_DEVICE_MODE=1 gives each the
device it has in eager. 0-d CPU tensors are numbers, as everywhere in PyTorch, and are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch.fx import GraphModule

from torch_neuronx import config

Compile = Callable[[GraphModule, list[Any]], Callable[..., Any]]


@functools.cache
def allow_mixed_devices() -> None:
    """Let fake tensors of this device meet CPU tensors: the copy comes at the call.

    PyTorch's own switch for that. It is the process's, but says something only about operators in
    which a neuron tensor meets a CPU tensor; a value that somebody set stays.
    """
    if functorch_config.fake_tensor_prefer_device_type is None:
        functorch_config.fake_tensor_prefer_device_type = "neuron"


def cpu_inputs(values: list[Any]) -> list[int]:
    """Positions of the dimensioned CPU tensors."""
    return [
        i
        for i, v in enumerate(values)
        if isinstance(v, torch.Tensor) and v.device.type == "cpu" and v.dim() > 0
    ]


def compile(gm: GraphModule, example_inputs: list[Any], compile_graph: Compile) -> Any:
    """``compile_graph`` for inputs on the device, and the copies around it.

    Raises:
        RuntimeError: TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY forbids it.
    """
    positions = cpu_inputs(example_inputs)
    if not positions:
        return compile_graph(gm, example_inputs)
    if config.get("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"):
        first = example_inputs[positions[0]]
        raise RuntimeError(
            f"torch.compile(backend='neuron'): input {positions[0]} (shape {tuple(first.shape)}, "
            f"{first.dtype}) is on device {first.device}, and "
            "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1 forbids copying it. Move it before the "
            "call with .to('neuron'), or unset the variable."
        )
    device = _device_of(example_inputs)
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    moved = list(example_inputs)
    for i in positions:
        moved[i] = _on_device(placeholders[i].meta["example_value"], device)
    inner = compile_graph(gm, moved)
    homes = _homes(gm) if config.get("TORCH_NEURONX_RETAIN_DEVICE_MODE") else []

    @torch._dynamo.disable(reason="copies inputs to the device")
    def call(*inputs: Any) -> Any:
        values = list(inputs)
        versions = []
        for i in positions:
            values[i] = inputs[i].to(device)
            versions.append(values[i]._version)
        results = inner(*values)
        for i, version in zip(positions, versions, strict=True):
            if values[i]._version != version:
                with torch.no_grad():
                    inputs[i].copy_(values[i])
        if not homes:
            return results
        return type(results)(
            r.to(h) if h is not None and isinstance(r, torch.Tensor) else r
            for r, h in zip(results, homes, strict=True)
        )

    return call


def _device_of(values: list[Any]) -> torch.device:
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "neuron":
            return value.device
    return torch.device("neuron", torch.neuron.current_device())


def _on_device(fake: Any, device: torch.device) -> Any:
    """A fake tensor as ``to(device)`` gives it, symbolic sizes kept, as a leaf."""
    with fake.fake_mode:
        return fake.detach().to(device).requires_grad_(fake.requires_grad)


def _homes(gm: GraphModule) -> list[torch.device | None]:
    """Where eager would put each result."""
    (output,) = [n for n in gm.graph.nodes if n.op == "output"]
    found: list[torch.device | None] = []
    for item in output.args[0]:
        value = item.meta.get("example_value") if isinstance(item, torch.fx.Node) else None
        found.append(value.device if isinstance(value, torch.Tensor) else None)
    return found
