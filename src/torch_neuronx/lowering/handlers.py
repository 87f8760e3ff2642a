"""Custom calls of handlers that the process has registered with the plugin (decision D19).

A rule asks for a handler and writes portable code where there is none. Operands and results are
row-major. A handler's attributes are integers, or lists of them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

# Those of csrc/host/call.cc.
_DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64"}
    | {"float16", "bfloat16", "float32", "float64"}
)
_NO_NAMES: frozenset[str] = frozenset()
_available: contextvars.ContextVar[Collection[str]] = contextvars.ContextVar(
    "available", default=_NO_NAMES
)
_used: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("used", default=None)


@contextlib.contextmanager
def offered(names: Collection[str]) -> Iterator[set[str]]:
    """Within the block rules may call these handlers; gives the set of those they did call."""
    used: set[str] = set()
    tokens = _available.set(frozenset(names)), _used.set(used)
    try:
        yield used
    finally:
        _available.reset(tokens[0])
        _used.reset(tokens[1])


def takes(name: str, *operands: Any) -> bool:
    """Whether a rule may call the handler with these operands. Empty ones are for portable code."""
    return name in _available.get() and all(
        x.size > 0 and np.dtype(x.dtype).name in _DTYPES for x in operands
    )


def call(
    name: str, results: Sequence[tuple[tuple[int, ...], Any]], *operands: Any, **attributes: Any
) -> list[Any]:
    """Calls a handler that ``takes`` these operands; ``results`` are shapes and dtypes."""
    used = _used.get()
    assert used is not None and takes(name, *operands), name
    used.add(name)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    texts = {k: _attribute(v) for k, v in attributes.items()}
    return list(jax.ffi.ffi_call(name, shapes)(*operands, **texts))


def _attribute(value: int | Sequence[int]) -> Any:
    # Lists as text: not every version of StableHLO carries arrays among a call's attributes.
    return np.int64(value) if isinstance(value, int) else ",".join(map(str, value))
