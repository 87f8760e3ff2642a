"""Why a graph was specialised again: the difference from the nearest signature before."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.compiler import ledger
from torch_neuronx.compiler.compile import Compiled


def signature(values: list[Any]) -> tuple[str, ...]:
    """What of a call's inputs decides its executable, a text each."""
    return tuple(_describe(v) for v in values)


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return text if value.is_contiguous() else f"{text} strides {list(value.stride())}"


def explain(inputs: tuple[str, ...], earlier: list[tuple[str, ...]]) -> str:
    """What differs from the nearest of ``earlier``, or "" if there is none."""
    if not earlier:
        return ""

    def differing(other: tuple[str, ...]) -> list[int]:
        return [i for i, (a, b) in enumerate(zip(other, inputs, strict=True)) if a != b]

    nearest = min(reversed(earlier), key=lambda other: len(differing(other)))
    changed = differing(nearest)
    if not changed:
        return "the same shapes, but inputs that share storage, or views that lie, differently"
    shown = [f"input {i}: {nearest[i]} -> {inputs[i]}" for i in changed[:4]]
    more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
    return ", ".join(shown) + more


def fill(record: ledger.Specialisation, compiled: Compiled | None) -> None:
    """Where the executable came from and what it cost; None: it failed."""
    if compiled is None:
        record.source = "failed"
        return
    record.lower_s = compiled.lower_s
    record.compile_s = compiled.compile_s
    record.load_s = compiled.load_s
    record.size_bytes = compiled.size_bytes
    try:
        stats = compiled.handle.memory_stats()
    except (RuntimeError, NotImplementedError):
        stats = {}  # the plugin does not say
    temporary = stats.get("temp_bytes", -1)
    record.temporary_bytes = temporary if temporary >= 0 else None
    record.argument_bytes = max(0, stats.get("argument_bytes", 0))
    record.output_bytes = max(0, stats.get("output_bytes", 0))
    record.source = compiled.source
