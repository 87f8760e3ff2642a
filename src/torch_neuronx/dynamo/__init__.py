"""``torch.compile(backend="neuron")``: Dynamo's graphs, through AOTAutograd, as executables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_neuronx.dynamo import autocopy

# Dynamo loads this module when somebody asks for the backend, before it traces.
autocopy.allow_mixed_devices()


def neuron(gm: Any, example_inputs: list[Any], **kwargs: Any) -> Callable[..., Any]:
    """The Dynamo backend called ``neuron`` (entry point group ``torch_dynamo_backends``).

    Stage: experimental.
    """
    from torch_neuronx.dynamo import backend

    return backend.compile(gm, example_inputs, **kwargs)
