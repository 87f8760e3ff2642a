"""Index checks inside an executable (decision D10).

A checked executable returns one more value, int64[2]: the number of the first check that failed,
counted from one (0: none did), and the first offending value. The host reads it at the next
synchronisation and raises the exception and text that CPU would have raised.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Check:
    """What to raise: a builtin exception's name, or LinAlgError, and a text with {value} in it."""

    exception: str
    message: str


class Checks:
    """Collects the checks of one program."""

    def __init__(self) -> None:
        self.declared: list[Check] = []
        self._word: Any = None

    def require(self, ok: Any, value: Any, exception: str, message: str) -> None:
        """Fail with ``exception(message)`` unless every element of ``ok`` holds.

        ``value`` (int, same shape as ``ok``) supplies {value}: that of the first failing element.
        """
        if ok.size == 0:
            return
        self.declared.append(Check(exception, message))
        bad = ~ok.reshape(-1)
        first = jnp.argmax(bad)
        values = jnp.broadcast_to(value, ok.shape).reshape(-1).astype(np.int64)
        number = jnp.where(jnp.any(bad), np.int64(len(self.declared)), np.int64(0))
        word = jnp.stack([number, values[first]])
        if self._word is None:
            self._word = word
        else:
            self._word = jnp.where(self._word[0] != 0, self._word, word)

    def word(self) -> Any | None:
        """The error word, or None when nothing is checked."""
        return self._word

    def word_or_zero(self) -> Any:
        """The error word; if nothing is checked, NumPy's constant that says that nothing failed."""
        return np.zeros(2, np.int64) if self._word is None else self._word

    def enter(self) -> Any:
        """Begin the checks of a subgraph, whose word is a value of its own; for ``leave``."""
        outer, self._word = self._word, None
        return outer

    def leave(self, outer: Any) -> None:
        """Back to the checks before ``enter``."""
        self._word = outer

    def merge(self, word: Any) -> None:
        """Take a subgraph's word into this program's."""
        if self.declared:
            own = self._word
            self._word = word if own is None else jnp.where(own[0] != 0, own, word)
