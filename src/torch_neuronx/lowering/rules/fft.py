"""Discrete Fourier transforms.

``normalization`` counts as PyTorch's fft_norm_mode: 0 none, 1 by the square root of the signal's
length, 2 by the length; the length is that of the transformed dimensions of the full signal.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast
from torch_neuronx.lowering.table import lowers

_FFT, _IFFT, _RFFT, _IRFFT = (
    lax.FftType.FFT,
    lax.FftType.IFFT,
    lax.FftType.RFFT,
    lax.FftType.IRFFT,
)


def _scale(x: Any, normalization: int, length: int) -> Any:
    if normalization == 0:
        return x
    factor = 1 / math.sqrt(length) if normalization == 1 else 1 / length
    return x * jnp.asarray(factor, x.real.dtype)


def _last(x: Any, dim: int, kind: lax.FftType, length: int) -> Any:
    """One transform along ``dim``, not scaled."""
    moved = jnp.moveaxis(x, dim, -1)
    moved = lax.fft(moved, kind, (length,))
    if kind in (_IFFT, _IRFFT):
        moved = moved * jnp.asarray(length, moved.real.dtype)
    return jnp.moveaxis(moved, -1, dim)


def _axes(x: Any, dim: tuple[int, ...]) -> list[int]:
    return [d % x.ndim for d in dim] if x.ndim else []


def _conjugate_half(half: Any, axes: list[int], length: int) -> Any:
    """The full spectrum of a real signal from the first half along the last of ``axes``:
    X[-k] = conj(X[k]), in all transformed dimensions."""
    last = axes[-1]
    rest = length - half.shape[last]
    mirrored = lax.slice_in_dim(half, 1, 1 + rest, axis=last)
    mirrored = jnp.flip(mirrored, last)
    for axis in axes[:-1]:
        mirrored = jnp.roll(jnp.flip(mirrored, axis), 1, axis)
    return jnp.concatenate([half, jnp.conj(mirrored)], axis=last)


@lowers("aten::_fft_r2c")
def fft_r2c(
    self: Any, dim: tuple[int, ...], normalization: int, onesided: bool, *, out: Any
) -> Any:
    """Spectrum of a real signal; ``onesided`` leaves out the redundant half of the last dim."""
    axes = _axes(self, dim)
    x = cast(self, "float64" if out.dtype == "complex128" else "float32")
    if not axes:
        return cast(x, out.dtype)
    length = x.shape[axes[-1]]
    total = math.prod(x.shape[a] for a in axes)
    x = _last(x, axes[-1], _RFFT, length)
    for axis in reversed(axes[:-1]):
        x = _last(x, axis, _FFT, x.shape[axis])
    x = _scale(x, normalization, total)
    return x if onesided else _conjugate_half(x, axes, length)


@lowers("aten::_fft_c2c")
def fft_c2c(self: Any, dim: tuple[int, ...], normalization: int, forward: bool) -> Any:
    """Complex transform over ``dim``."""
    axes = _axes(self, dim)
    x = self
    for axis in reversed(axes):
        x = _last(x, axis, _FFT if forward else _IFFT, x.shape[axis])
    return _scale(x, normalization, math.prod(self.shape[a] for a in axes))


@lowers("aten::_fft_c2r")
def fft_c2r(
    self: Any, dim: tuple[int, ...], normalization: int, last_dim_size: int, *, out: Any
) -> Any:
    """Real signal of a half spectrum, inverse transform; the last of ``dim`` is the halved one."""
    axes = _axes(self, dim)
    x = self
    for axis in axes[:-1]:
        x = _last(x, axis, _IFFT, x.shape[axis])
    last = axes[-1]
    need = last_dim_size // 2 + 1
    if x.shape[last] > need:
        x = lax.slice_in_dim(x, 0, need, axis=last)
    x = _last(x, last, _IRFFT, last_dim_size)
    return _scale(x, normalization, math.prod(out.shape[a] for a in axes))
