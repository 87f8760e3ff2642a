"""CPU tensors given to a compiled function: copied to the device at each call, or refused.

As in TorchNeuron, results then lie on the device; TORCH_NEURONX_RETAIN_DEVICE_MODE=1 gives each the
device it has in eager. 0-d CPU tensors are numbers, as everywhere in PyTorch, and are left alone.
What the function writes into is copied back; inputs that share memory on the CPU share it on the
device (``overlaps``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch.fx import GraphModule

from torch_neuronx import config
from torch_neuronx.dynamo import overlaps

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
    shared = overlaps.Overlaps.find(example_inputs, positions)
    inner = compile_graph(gm, _moved(gm, example_inputs, positions, shared, device))
    grouped = shared.grouped()
    alone = [i for i in positions if i not in grouped]
    homes = _homes(gm) if config.get("TORCH_NEURONX_RETAIN_DEVICE_MODE") else []

    @torch._dynamo.disable(reason="copies inputs to the device")
    def call(*inputs: Any) -> Any:
        values = list(inputs)
        for group in shared.groups:
            views = overlaps.as_one([inputs[i] for i in group], device)
            for i, made in zip(group, views, strict=True):
                values[i] = made
        for i in alone:
            values[i] = inputs[i].to(device)
        versions = [values[i]._version for i in positions]
        results = inner(*values)
        written = [i for i, v in zip(positions, versions, strict=True) if values[i]._version != v]
        shared.check(written, inputs)
        with torch.no_grad():
            for i in written:
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


def _moved(
    gm: GraphModule,
    example_inputs: list[Any],
    positions: list[int],
    shared: overlaps.Overlaps,
    device: torch.device,
) -> list[Any]:
    """The inputs that the graph is compiled for: those at ``positions`` as fakes on ``device``."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    moved = list(example_inputs)
    fakes = {i: placeholders[i].meta["example_value"] for i in positions}
    for i, fake in fakes.items():
        moved[i] = _on_device(fake, device)
    for group in shared.groups:
        start, behind = overlaps.extent([example_inputs[i] for i in group])
        with fakes[group[0]].fake_mode:
            flat = torch.empty(behind - start, dtype=fakes[group[0]].dtype, device=device)
            for i in group:
                moved[i] = overlaps.view(flat, fakes[i], start)
    return moved


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
