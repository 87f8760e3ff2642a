"""Kernels that nobody compiles yet (decision D12).

Adaptive eager puts the launches of such kernels together (``eager/batching``). Each can still be
compiled by itself, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from torch_neuronx import _C

# By kernel. Dictionaries are safe to use from several threads one operation at a time.
_starts: dict[int, Callable[[], Future[Any]]] = {}


def defer(
    kernel: _C.Kernel, reload_key: str, writes: list[int], start: Callable[[], Future[Any]]
) -> None:
    """``start`` compiles the kernel by itself, in the background."""
    _starts[kernel.identity] = start
    kernel.defer(reload_key, writes)


def start_alone(kernels: Iterable[_C.Kernel], over: Callable[[], None] = lambda: None) -> None:
    """Compile each by itself; one that cannot be begun has failed. ``over`` is called when each
    is there, in any thread."""
    for kernel in kernels:
        if not kernel.claim():
            over()
            continue
        try:
            _starts.pop(kernel.identity)().add_done_callback(lambda _: over())
        except Exception as error:
            kernel.set_failed(f"{kernel.name}: {type(error).__name__}: {error}")
