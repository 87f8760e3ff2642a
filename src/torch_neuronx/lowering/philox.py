"""Philox4x32-10 in integer arithmetic (decision D9).

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Element ``i`` of a draw uses
counter ``offset / 4 + i / 4`` and lane ``i mod 4``; the offset then advances by the element count
rounded up to a multiple of 4. The key is the 64-bit seed.

Rejection sampling draws again and again for some elements. Round ``r`` of an element uses the block
that the element's draw has anyway, with ``r`` in the third word of the counter, which is zero in
all other draws. So rounds overlap no other draw, and the offset advances by a fixed amount.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def _split(x: Any) -> tuple[Any, Any]:
    return (x & _LOW).astype(np.uint32), (x >> _32).astype(np.uint32)


def philox(counter: Any, seed: Any, round_: Any = 0) -> Any:
    """Four uint32 words a counter: shape (n, 4) from uint64 counters (n,) and a uint64 seed.

    ``round_`` is the third word of the counter.
    """
    c0, c1 = _split(counter)
    c2 = jnp.full_like(c0, round_)
    c3 = jnp.zeros_like(c0)
    k0, k1 = _split(seed)
    for _ in range(10):
        low0, high0 = _split(c0.astype(np.uint64) * _M0)
        low1, high1 = _split(c2.astype(np.uint64) * _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _W0, k1 + _W1
    return jnp.stack([c0, c1, c2, c3], axis=-1)


class Stream:
    """The draws of one program; ``increment`` is by how much it advances the generator."""

    def __init__(self, seed: Any, offset: Any) -> None:
        self._seed = seed
        self._offset = offset
        self.increment = 0

    def state(self) -> tuple[Any, Any]:
        """Seed and offset (0-d uint64) from which the next draw starts; ``Stream(*state)`` repeats
        it."""
        return self._seed, self._offset + np.uint64(self.increment)

    def bits32(self, shape: tuple[int, ...]) -> Any:
        """Uniform uint32 of ``shape``."""
        n = math.prod(shape)
        blocks = -(-n // 4)
        start = self._offset // np.uint64(4) + np.uint64(self.increment // 4)
        self.increment += 4 * blocks
        words = philox(start + jnp.arange(blocks, dtype=np.uint64), self._seed)
        return words.reshape(-1)[:n].reshape(shape)

    def rounds(self, shape: tuple[int, ...]) -> Callable[[Any], Any]:
        """A function from a round (int or 0-d uint32) to uniform uint32 of shape (4, *shape).

        Advances by four words an element, whatever the number of rounds.
        """
        n = math.prod(shape)
        start = self._offset // np.uint64(4) + np.uint64(self.increment // 4)
        self.increment += 4 * n
        counter = start + jnp.arange(n, dtype=np.uint64)
        return lambda round_: philox(counter, self._seed, round_).T.reshape(4, *shape)

    def bits64(self, shape: tuple[int, ...]) -> Any:
        """Uniform uint64 of ``shape``: two lanes an element."""
        words = self.bits32((*shape, 2)).astype(np.uint64)
        return (words[..., 1] << _32) | words[..., 0]

    def uniform(self, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Uniform in [0, 1): 24 random bits for float32, 53 for float64."""
        if dtype == "float64":
            return (self.bits64(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return (self.bits32(shape) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Standard normal float32 by Box-Muller: lanes 0 and 1 of a block give elements 0 and 1,
        lanes 2 and 3 elements 2 and 3.

        So a draw takes as many lanes as it has elements, on which PyTorch's sharded tensors rely:
        they start the draw of each shard where that of the one before ends.
        """
        n = math.prod(shape)
        lanes = self.uniform((-(-n // 4) * 2, 2))
        radius = jnp.sqrt(-2 * jnp.log(1 - lanes[:, 0]))  # of (0, 1], so it is finite
        angle = np.float32(2 * np.pi) * lanes[:, 1]
        pairs = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)
        return pairs.reshape(-1)[:n].reshape(shape)
