"""Which operators ran where, and the policy for those without a rule (decision D8)."""

from __future__ import annotations

import collections
import dataclasses
import threading
import traceback
import warnings
from typing import Any

from torch_neuronx import _C, config
from torch_neuronx.eager import schemas

_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Fallback:
    """One way in which an operator ran on the CPU: who, on what, and from where."""

    overload: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    line: str


_fallbacks: collections.Counter[Fallback] = collections.Counter()
_warned: set[str] = set()


class FallbackError(NotImplementedError):
    """An operator has no rule and ``TORCH_NEURONX_FALLBACK=error`` forbids the CPU."""


def executed_ops() -> list[str]:
    """Overloads with a native launch since the last ``clear``."""
    return sorted(_C.executed_overloads())


def fallback_ops() -> list[str]:
    """Overloads that ran on the CPU since the last ``clear``."""
    with _lock:
        return sorted({f.overload for f in _fallbacks})


def fallbacks() -> list[tuple[Fallback, int]]:
    """Every distinct fallback and its count, most frequent first."""
    with _lock:
        return _fallbacks.most_common()


def fallback_table() -> str:
    """Every distinct fallback as a line of a table with its count, dtypes, shapes and Python line.

    Most frequent first; only the heading when there was none.
    """
    rows = [("count", "overload", "dtypes", "shapes", "line")]
    rows += [
        (str(n), f.overload, " ".join(f.dtypes), " ".join(map(str, f.shapes)), f.line)
        for f, n in fallbacks()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def clear() -> None:
    """Forget all counts. What was warned of is not warned of again."""
    with _lock:
        _fallbacks.clear()
    _C.reset_overload_counts()


def _user_line() -> str:
    """The innermost line outside torch and this package."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and "/torch_neuronx/" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def on_fallback(overload: str, values: list[Any]) -> None:
    """Called before an operator without a rule runs on the CPU: count it, warn, or refuse.

    Raises:
        FallbackError: the policy is ``error``.
    """
    tensors = schemas.tensors(values)
    fallback = Fallback(
        overload,
        tuple(str(t.dtype).removeprefix("torch.") for t in tensors),
        tuple(tuple(t.shape) for t in tensors),
        _user_line(),
    )
    policy = config.get("TORCH_NEURONX_FALLBACK")
    what = (
        f"{overload} has no lowering rule for the neuron device "
        f"(dtypes {', '.join(fallback.dtypes)}; shapes {fallback.shapes}; {fallback.line})"
    )
    if policy == "error":
        raise FallbackError(
            f"{what}, and TORCH_NEURONX_FALLBACK=error forbids running it on the CPU. Set it to "
            "`warn` or `allow`, or replace the operator."
        )
    with _lock:
        _fallbacks[fallback] += 1
        first = overload not in _warned
        _warned.add(overload)
    if policy == "warn" and first:
        warnings.warn(
            f"{what}: it runs on the CPU, with copies both ways. Said once per operator; "
            "torch_neuronx.get_fallback_ops() lists them all.",
            UserWarning,
            stacklevel=2,
        )
