"""Why a graph was specialised again: the difference from the nearest signature before."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._logging import trace_structured

from torch_neuronx.compiler import ledger
from torch_neuronx.compiler.compile import Compiled

_log = logging.getLogger(__name__)


def signature(values: list[Any], operands: Sequence[int] = ()) -> tuple[str, ...]:
    """What of a call's inputs decides its executable, a text each; of the numbers at ``operands``
    that is the type alone."""
    return tuple(type(v).__name__ if i in operands else _describe(v) for i, v in enumerate(values))


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
    record.bytes_accessed = int(compiled.meta.get("bytes_accessed", 0))
    record.handlers = tuple(compiled.meta.get("handlers", ()))
    try:
        stats = compiled.handle.memory_stats()
        if stats["temporaries"] >= 0:
            record.temporary_bytes = stats["temporaries"]
        record.argument_bytes = max(0, stats["arguments"])
        record.output_bytes = max(0, stats["outputs"])
    except (RuntimeError, NotImplementedError):
        pass  # the plugin does not say
    record.source = compiled.source


class Report:
    """Tells of a specialisation once it is planned and its executable is there, whichever is last.

    Those come from different threads.
    """

    def __init__(self, record: ledger.Specialisation) -> None:
        self._record = record
        self._parts = itertools.count(1)

    def part(self) -> None:
        """One of the two is done."""
        if next(self._parts) == 2:
            report(self._record)


def report(record: ledger.Specialisation) -> None:
    """Log a specialisation (``TORCH_LOGS="+torch_neuronx.dynamo"``) and trace it for tlparse."""
    _log.info("%s: %s: %s", record.graph_name, record.source, record.cause)
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"neuron_{record.graph_name}", "encoding": "json"},
        payload_fn=lambda: json.dumps(dataclasses.asdict(record)),
    )
