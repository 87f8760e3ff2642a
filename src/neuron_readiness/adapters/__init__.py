"""A device is reached through an adapter: PyTorch's public API, and what else a backend can say."""

from __future__ import annotations

from neuron_readiness.adapters.base import Adapter, CompileEvent
from neuron_readiness.adapters.choose import adapter_for

__all__ = ["Adapter", "CompileEvent", "adapter_for"]
