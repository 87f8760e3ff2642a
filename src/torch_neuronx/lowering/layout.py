"""Arrays as they lie in memory.

**Narrow dimensions.** XLA's CPU code makes one loop of an element-wise operator per dimension, so
that over the innermost of a convolution's weight (512 x 512 x 3 x 3) vectors hold three elements.
AdamW of two such weights took 51 ms in bfloat16 and 29 in float32, flat 13 and 15 (one thread;
PyTorch 16 and 18 to 33).

**Transposes.** ``transposed`` remembers which matrices lie the other way round while a program is
lowered, so that a rule may choose the product that reads them as they lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

_NARROW = 32  # innermost dimensions from which the loops are as quick as flat ones

_state = threading.local()


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Within it ``lies_transposed`` knows of what ``transposed`` made in this thread."""
    outer = getattr(_state, "matrices", None)
    _state.matrices = {}  # by id; the arrays are held, so that none is given twice
    try:
        yield
    finally:
        _state.matrices = outer


def transposed(x: Any, order: Sequence[int]) -> Any:
    """``x`` with its dimensions in another order."""
    result = jnp.transpose(x, order)
    matrices = getattr(_state, "matrices", None)
    turns = x.ndim >= 2 and tuple(order) == (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    if matrices is not None and turns and not lies_transposed(x):
        matrices[id(result)] = result
    return result


def lies_transposed(x: Any) -> bool:
    """Whether it is matrices of which the transposed ones lie in memory, as far as is known."""
    return id(x) in (getattr(_state, "matrices", None) or ())


def flat(x: Any) -> Any:
    """``x`` in one dimension. Without the barrier XLA moves the reshape behind what follows."""
    return lax.optimization_barrier(x.reshape(-1))


def unflat(x: Any, shape: tuple[int, ...]) -> Any:
    """A flat array in its shape again. Without the barrier what made it writes another buffer than
    the one it read, and is copied back."""
    return lax.optimization_barrier(x).reshape(shape)


def behind_barrier(x: Any) -> Any:
    """``x`` behind a barrier on the array as it lies."""
    return flat(x).reshape(x.shape)


def is_narrow(shape: tuple[int, ...]) -> bool:
    """Whether element-wise loops over the array pay to be flat."""
    return len(shape) >= 2 and shape[-1] < _NARROW and 0 not in shape


def flat_row(row: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], Any, tuple[int, ...] | None]:
    """The arguments and the result of an element-wise operator in one dimension, if that pays.

    Args:
        row: arrays and anything else.
        out: what the result is to be, with ``shape``.

    Returns:
        The same, flat, and the shape for the result; or the same as they came, and None. They stay
        as they are unless each array is a number or of the result's shape.
    """
    shape = tuple(out.shape)
    if not is_narrow(shape):
        return row, out, None
    arrays = [x for x in row if getattr(x, "ndim", 0)]
    if not arrays or any(tuple(x.shape) != shape for x in arrays):
        return row, out, None
    flattened = tuple(flat(x) if getattr(x, "ndim", 0) else x for x in row)
    return flattened, dataclasses.replace(out, shape=(arrays[0].size,)), shape
