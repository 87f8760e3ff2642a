"""Models of ``sentence_transformers`` with the device as their default.

``SentenceTransformer(...)`` without ``device=`` looks for the accelerators that it knows and then
takes the CPU, without a word. These classes are the library's own with another default:

    from torch_neuronx.integrations.sentence_transformers import SentenceTransformer

Training needs nothing of this: the library's trainers go where accelerate does.
"""

from __future__ import annotations

from typing import Any

from torch_neuronx.integrations.tested import require

__all__ = ["CrossEncoder", "SentenceTransformer", "SparseEncoder"]

_library: Any = require("sentence-transformers")


class SentenceTransformer(_library.SentenceTransformer):  # type: ignore[misc, name-defined]
    """``sentence_transformers.SentenceTransformer``, on the current neuron device unless ``device``
    is given. Stage: experimental."""

    def __init__(self, *args: Any, device: Any = None, **options: Any) -> None:
        super().__init__(*args, device="neuron" if device is None else device, **options)


class CrossEncoder(_library.CrossEncoder):  # type: ignore[misc, name-defined]
    """``sentence_transformers.CrossEncoder``, on the current neuron device unless ``device`` is
    given. Stage: experimental."""

    def __init__(self, *args: Any, device: Any = None, **options: Any) -> None:
        super().__init__(*args, device="neuron" if device is None else device, **options)


class SparseEncoder(_library.SparseEncoder):  # type: ignore[misc, name-defined]
    """``sentence_transformers.SparseEncoder``, on the current neuron device unless ``device`` is
    given. Stage: experimental."""

    def __init__(self, *args: Any, device: Any = None, **options: Any) -> None:
        super().__init__(*args, device="neuron" if device is None else device, **options)
