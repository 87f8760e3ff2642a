"""``transformers.pipeline`` with the device as its default.

``transformers.pipeline(...)`` without ``device=`` looks for the accelerators that it knows and then
takes the CPU, without a word. This function is the same with another default:

    from torch_neuronx.integrations.transformers import pipeline

    pipeline("text-generation", model=model, tokenizer=tokenizer)  # on neuron

Nothing else of transformers needs this package: ``Trainer``, ``generate`` and
``from_pretrained(device_map="neuron")`` know the device. ``device_map="auto"`` means the CPU in
accelerate, which has no entry for the device.
"""

from __future__ import annotations

from typing import Any

from torch_neuronx.integrations.tested import require

__all__ = ["pipeline"]

transformers: Any = require("transformers")


def pipeline(*args: Any, device: Any = None, device_map: Any = None, **options: Any) -> Any:
    """As ``transformers.pipeline``; without ``device`` and ``device_map`` it runs on the current
    neuron device.

    Stage: experimental.
    """
    if device_map is not None:
        return transformers.pipeline(*args, device=device, device_map=device_map, **options)
    return transformers.pipeline(*args, device="neuron" if device is None else device, **options)
