"""Ranges in PyTorch's profiler for work of the compiler's threads.

A profiler sees the threads that it was started in, and those that carry that thread's state. The
compiler itself works without torch, so torch is looked for and not imported.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def _profiling_torch() -> Any:
    """torch, if it is there and a profiler sees this thread; else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.autograd._profiler_enabled() else None


def carried_state() -> contextlib.AbstractContextManager[None]:
    """To be entered in another thread: what this thread's profiler must see, if one runs."""
    if _profiling_torch() is None:
        return contextlib.nullcontext()
    from torch_neuronx import _C

    return _C.CarriedState()


def profiled(what: str, name: str) -> contextlib.AbstractContextManager[object]:
    """A range ``neuron::<what> <name>``, if a profiler sees this thread."""
    torch = _profiling_torch()
    if torch is None:
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"neuron::{what} {name}")
