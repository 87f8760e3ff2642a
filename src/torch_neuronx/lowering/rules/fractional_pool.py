"""Max pooling over windows that random samples place, with gradients.

``random_samples`` (batch, channels, dimensions) in [0, 1) is an argument, so nothing is drawn here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.rules.pool import _scatter_planes
from torch_neuronx.lowering.table import lowers

Ints = Sequence[int]


def _starts(sample: Any, size: int, out: int, kernel: int) -> Any:
    """First input position of each window: int64 (planes, out) of ``sample`` (planes,)."""
    last = size - kernel
    if out == 1:
        return jnp.full((sample.shape[0], 1), last, np.int64)
    alpha = jnp.asarray(last, sample.dtype) / jnp.asarray(out - 1, sample.dtype)
    i = jnp.arange(out - 1, dtype=sample.dtype)
    s = sample[:, None]
    first = ((i + s) * alpha).astype(np.int64) - (s * alpha).astype(np.int64)
    return jnp.concatenate([first, jnp.full((s.shape[0], 1), last, np.int64)], axis=1)


def _register(n: int) -> None:
    # The samples of a plane are for (width, height) in two dimensions, (time, height, width) in
    # three.
    order = (1, 0) if n == 2 else (0, 1, 2)

    @lowers(f"aten::fractional_max_pool{n}d")
    def forward(
        self: Any, kernel_size: Ints, output_size: Ints, random_samples: Any, *, out: Any
    ) -> tuple[Any, Any]:
        """Largest value of each window and its flat position in the plane."""
        kernel, size = tuple(kernel_size), self.shape[-n:]
        target = out[0].shape[-n:]
        if 0 in out[0].shape:
            return jnp.zeros(out[0].shape, self.dtype), jnp.zeros(out[0].shape, np.int64)
        planes = math.prod(self.shape[:-n])
        flat = self.reshape(planes, -1)
        # Windows are placed in the samples' own dtype, as CPU does: others could lie elsewhere.
        # There may be more of them than images: CPU reads those of the first.
        batch = self.shape[0] if self.ndim == n + 2 else 1
        samples = random_samples[:batch].reshape(planes, n)
        starts = [_starts(samples[:, order[a]], size[a], target[a], kernel[a]) for a in range(n)]
        best = jnp.full((planes, math.prod(target)), -np.inf, self.dtype)
        index: Any = None
        for offset in itertools.product(*(range(k) for k in kernel)):
            place = jnp.zeros((planes, *(1,) * n), np.int64)
            for a in range(n):
                line = (starts[a] + offset[a]).reshape(
                    planes, *(1,) * a, target[a], *(1,) * (n - 1 - a)
                )
                place = place * size[a] + line
            place = place.reshape(planes, -1)
            value = jnp.take_along_axis(flat, place, axis=1, mode="clip")
            better = (value > best) | (value != value)
            best = jnp.where(better, value, best)
            index = place if index is None else jnp.where(better, place, index)
        return best.reshape(out[0].shape), index.reshape(out[0].shape)

    @lowers(f"aten::fractional_max_pool{n}d_backward")
    def backward(
        grad_output: Any, self: Any, kernel_size: Ints, output_size: Ints, indices: Any
    ) -> Any:
        """Each gradient goes to the position its window chose."""
        g = cast(grad_output, op_math(dtype_name(grad_output)))
        if g.size == 0:
            return jnp.zeros(self.shape, g.dtype)
        return _scatter_planes(g, indices, n, self.shape)


_register(2)
_register(3)
