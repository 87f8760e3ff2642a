"""Normalisation layers and their gradients.

Statistics are computed in float32 for reduced floats. Gradients that the output mask leaves out
are None.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, dtype_name, np_dtype, op_math
from torch_neuronx.lowering.table import lowers

Mask = tuple[bool, ...]


def _moments(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Mean and biased variance, keeping dimensions; NaN over nothing."""
    n = math.prod(x.shape[a] for a in axes)
    if n == 0:
        shape = [1 if a in axes else s for a, s in enumerate(x.shape)]
        nothing = jnp.full(shape, jnp.nan, x.dtype)
        return nothing, nothing
    mean = jnp.sum(x, axis=axes, keepdims=True) / n
    centred = x - mean
    return mean, jnp.sum(centred * centred, axis=axes, keepdims=True) / n


# --- layer norm and RMS norm -------------------------------------------------------------------


@lowers("aten::native_layer_norm")
def native_layer_norm(
    input: Any,
    normalized_shape: tuple[int, ...],
    weight: Any,
    bias: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, Any, Any]:
    """Normalised over the trailing dimensions; also mean and 1 / standard deviation."""
    dtype = op_math(dtype_name(input))
    x = cast(input, dtype)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    mean, var = _moments(x, axes)
    rstd = lax.rsqrt(var + cast(eps, dtype))
    y = (x - mean) * rstd
    if weight is not None:
        y = y * cast(weight, dtype)
    if bias is not None:
        y = y + cast(bias, dtype)
    return y, mean.reshape(out[1].shape), rstd.reshape(out[2].shape)


@lowers("aten::native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: tuple[int, ...],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Mask,
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias."""
    dtype = op_math(dtype_name(input))
    g, x, mean, rstd = (cast(a, dtype) for a in (grad_out, input, mean, rstd))
    axis = x.ndim - len(normalized_shape)
    inner, outer = tuple(range(axis, x.ndim)), tuple(range(axis))
    statistics = x.shape[:axis] + (1,) * len(inner)
    mean, rstd = mean.reshape(statistics), rstd.reshape(statistics)
    normal = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        n = max(math.prod(normalized_shape), 1)
        gw = g if weight is None else g * cast(weight, dtype)
        average = jnp.sum(gw, axis=inner, keepdims=True) / n
        along = jnp.sum(gw * normal, axis=inner, keepdims=True) / n
        grad_input = rstd * (gw - average - normal * along)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normal, axis=outer)
    if output_mask[2]:
        grad_bias = jnp.sum(g, axis=outer)
    return grad_input, grad_weight, grad_bias


@lowers("aten::_fused_rms_norm")
def fused_rms_norm(
    input: Any, normalized_shape: tuple[int, ...], weight: Any, eps: Any, *, out: Any
) -> tuple[Any, Any]:
    """Divided by the root of the mean square; also that root's reciprocal."""
    dtype = op_math(dtype_name(input))
    x = cast(input, dtype)
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    if eps is None:
        eps = float(jnp.finfo(np_dtype(dtype)).eps)
    n = max(math.prod(normalized_shape), 1)
    square = jnp.sum(x * x, axis=axes, keepdims=True) / n
    rstd = lax.rsqrt(square + cast(eps, dtype))
    y = x * rstd
    if weight is not None:
        y = y * cast(weight, dtype)
    return y, rstd.reshape(out[1].shape)


@lowers("aten::_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: tuple[int, ...],
    rstd: Any,
    weight: Any,
    output_mask: Mask,
) -> tuple[Any, Any]:
    """Gradients of input and weight."""
    dtype = op_math(dtype_name(input))
    g, x, rstd = (cast(a, dtype) for a in (grad_out, input, rstd))
    axis = x.ndim - len(normalized_shape)
    inner, outer = tuple(range(axis, x.ndim)), tuple(range(axis))
    rstd = rstd.reshape(x.shape[:axis] + (1,) * len(inner))
    normal = x * rstd
    grad_input = grad_weight = None
    if output_mask[0]:
        gw = g if weight is None else g * cast(weight, dtype)
        n = max(math.prod(normalized_shape), 1)
        along = jnp.sum(gw * normal, axis=inner, keepdims=True) / n
        grad_input = rstd * (gw - normal * along)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normal, axis=outer)
    return grad_input, grad_weight


# --- group norm --------------------------------------------------------------------------------


@lowers("aten::native_group_norm")
def native_group_norm(
    input: Any,
    weight: Any,
    bias: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Any,
) -> tuple[Any, Any, Any]:
    """Normalised over each group of channels; mean and 1 / standard deviation (N, group)."""
    dtype = op_math(dtype_name(input))
    x = cast(input, dtype).reshape(N, group, C // group, HxW)
    mean, var = _moments(x, (2, 3))
    rstd = lax.rsqrt(var + cast(eps, dtype))
    y = (x - mean) * rstd
    if weight is not None:
        y = y * cast(weight, dtype).reshape(1, group, C // group, 1)
    if bias is not None:
        y = y + cast(bias, dtype).reshape(1, group, C // group, 1)
    return y.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lowers("aten::native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Mask,
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias."""
    dtype = op_math(dtype_name(input))
    shape = (N, group, C // group, HxW)
    g, x = cast(grad_out, dtype).reshape(shape), cast(input, dtype).reshape(shape)
    mean, rstd = (cast(a, dtype).reshape(N, group, 1, 1) for a in (mean, rstd))
    normal = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        gw = g if weight is None else g * cast(weight, dtype).reshape(1, group, C // group, 1)
        n = max(shape[2] * HxW, 1)
        average = jnp.sum(gw, axis=(2, 3), keepdims=True) / n
        along = jnp.sum(gw * normal, axis=(2, 3), keepdims=True) / n
        grad_input = (rstd * (gw - average - normal * along)).reshape(input.shape)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normal, axis=(0, 3)).reshape(C)
    if output_mask[2]:
        grad_bias = jnp.sum(g, axis=(0, 3)).reshape(C)
    return grad_input, grad_weight, grad_bias


# --- batch norm --------------------------------------------------------------------------------


def _channels(a: Any, ndim: int, dtype: str) -> Any:
    """A value a channel, shaped to broadcast over (N, C, ...)."""
    return cast(a, dtype).reshape(1, -1, *(1,) * (ndim - 2))


def _batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    saved: tuple[int, ...],
) -> tuple[Any, Any, Any, Any, Any]:
    """Result, saved mean and 1 / standard deviation, new running mean and variance.

    ``saved`` is the shape of the saved statistics in evaluation: (0,) on CPU, (C,) elsewhere.
    """
    dtype = op_math(dtype_name(input))
    x = cast(input, dtype)
    axes = (0, *range(2, x.ndim))
    eps = cast(eps, dtype)
    if training:
        mean, var = _moments(x, axes)
        invstd = lax.rsqrt(var + eps)
        save_mean, save_invstd = mean.reshape(-1), invstd.reshape(-1)
        n = x.size // max(x.shape[1], 1)
        if running_mean is not None:
            running_mean = _moving(running_mean, save_mean, momentum)
        if running_var is not None:
            running_var = _moving(running_var, _unbiased(var.reshape(-1), n), momentum)
    else:
        mean = _channels(running_mean, x.ndim, dtype)
        invstd = lax.rsqrt(_channels(running_var, x.ndim, dtype) + eps)
        if saved == (0,):
            save_mean = save_invstd = jnp.zeros(0, x.dtype)
        else:
            save_mean, save_invstd = mean.reshape(-1), invstd.reshape(-1)
    y = (x - mean) * invstd
    if weight is not None:
        y = y * _channels(weight, x.ndim, dtype)
    if bias is not None:
        y = y + _channels(bias, x.ndim, dtype)
    return y, save_mean, save_invstd, running_mean, running_var


def _unbiased(var: Any, n: int) -> Any:
    """What running variances average: n / (n - 1) of the biased one, NaN for one value."""
    return var * (n / (n - 1)) if n > 1 else jnp.full_like(var, jnp.nan)


def _moving(running: Any, value: Any, momentum: Any) -> Any:
    """(1 - momentum) * running + momentum * value, in the running statistic's dtype."""
    dtype = op_math(dtype_name(running))
    momentum = cast(momentum, dtype)
    return cast(
        (1 - momentum) * cast(running, dtype) + momentum * cast(value, dtype),
        dtype_name(running),
    )


@lowers("aten::native_batch_norm", mutates=("running_mean", "running_var"))
def native_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Normalised over all but the channel dimension.

    In training with running statistics, their new values follow the three results; otherwise
    nothing is mutated.
    """
    results = _batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps, out[1].shape
    )
    return results if training else results[:3]


@lowers("aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional")
def native_batch_norm_legit(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Batch norm, saved statistics, new running statistics (unchanged in evaluation)."""
    return _batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps, out[1].shape
    )


@lowers("aten::_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    input: Any,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Batch norm without running statistics."""
    return _batch_norm(input, weight, bias, None, None, True, momentum, eps, out[1].shape)[:3]


@lowers("aten::_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Batch norm in evaluation."""
    return _batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps, out[1].shape
    )[:3]


@lowers("aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional")
def batch_norm_with_update(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Batch norm in training: result, saved statistics, reserve (empty), running statistics."""
    y, mean, invstd, new_mean, new_var = _batch_norm(
        input, weight, bias, running_mean, running_var, True, momentum, eps, out[1].shape
    )
    return y, mean, invstd, jnp.zeros(out[3].shape, np.uint8), new_mean, new_var


@lowers("aten::_batch_norm_no_update")
def batch_norm_no_update(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: Any,
    eps: Any,
    *,
    out: Any,
) -> tuple[Any, ...]:
    """Batch norm in evaluation: result, saved statistics, reserve (empty)."""
    y, mean, invstd, _, _ = _batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps, out[1].shape
    )
    return y, mean, invstd, jnp.zeros(out[3].shape, np.uint8)


@lowers("aten::batch_norm_update_stats", mutates=("running_mean", "running_var"))
def batch_norm_update_stats(
    input: Any, running_mean: Any, running_var: Any, momentum: Any
) -> tuple[Any, ...]:
    """Batch mean and biased variance, then the new running statistics if they are given."""
    dtype = op_math(dtype_name(input))
    x = cast(input, dtype)
    mean, var = (a.reshape(-1) for a in _moments(x, (0, *range(2, x.ndim))))
    n = x.size // max(x.shape[1], 1)
    if running_mean is not None:
        running_mean = _moving(running_mean, mean, momentum)
    if running_var is not None:
        running_var = _moving(running_var, _unbiased(var, n), momentum)
    return mean, var, running_mean, running_var


def _batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: Any,
    output_mask: Mask,
) -> tuple[Any, Any, Any]:
    dtype = op_math(dtype_name(input))
    g, x = cast(grad_out, dtype), cast(input, dtype)
    axes = (0, *range(2, x.ndim))
    if train:
        mean, invstd = (_channels(a, x.ndim, dtype) for a in (save_mean, save_invstd))
    else:
        mean = _channels(running_mean, x.ndim, dtype)
        invstd = lax.rsqrt(_channels(running_var, x.ndim, dtype) + cast(eps, dtype))
    n = max(x.size // max(x.shape[1], 1), 1)
    normal = (x - mean) * invstd
    total = jnp.sum(g, axis=axes, keepdims=True)
    along = jnp.sum(g * normal, axis=axes, keepdims=True)
    grad_weight = grad_bias = None
    scale = invstd if weight is None else invstd * _channels(weight, x.ndim, dtype)
    # PyTorch's meta kernel gives the input's gradient even where the mask does not ask for it.
    grad_input = (g - total / n - normal * (along / n)) * scale if train else g * scale
    if output_mask[1]:
        grad_weight = along.reshape(-1)
    if output_mask[2]:
        grad_bias = total.reshape(-1)
    return grad_input, grad_weight, grad_bias


@lowers("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: Any,
    output_mask: Mask,
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias."""
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
        output_mask,
    )  # fmt: skip


@lowers("aten::batch_norm_backward")
def batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: Any,
    output_mask: Mask,
    reserve: Any,
) -> tuple[Any, Any, Any]:
    """Gradients of the _batch_norm_with_update family; save_var is 1 / standard deviation."""
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
        output_mask,
    )  # fmt: skip


# --- norms of slices ---------------------------------------------------------------------------


def _p_norm(x: Any, p: float, axes: tuple[int, ...]) -> Any:
    size = jnp.abs(x)
    if p == math.inf:
        return jnp.max(size, axis=axes, keepdims=True)
    if p == 1:
        return jnp.sum(size, axis=axes, keepdims=True)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=axes, keepdims=True))
    return jnp.sum(size**p, axis=axes, keepdims=True) ** (1 / p)


@lowers("aten::renorm", static=("p",))
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    """Slices along ``dim`` scaled down to p-norm ``maxnorm`` where they exceed it."""
    dtype = op_math(dtype_name(self))
    x = cast(self, dtype)
    norm = _p_norm(x, float(p), tuple(a for a in range(x.ndim) if a != dim % x.ndim))
    limit = cast(maxnorm, dtype_name(norm))
    # 1e-7 as in ATen, so that a slice never ends above the limit.
    return x * jnp.where(norm > limit, limit / (norm + 1e-7), jnp.ones((), norm.dtype))


def _weight_norm_axes(v: Any, dim: int) -> tuple[int, ...]:
    return tuple(a for a in range(v.ndim) if a != dim)


@lowers("aten::_weight_norm_interface")
def weight_norm_interface(v: Any, g: Any, dim: int = 0) -> tuple[Any, Any]:
    """g * v / |v|, norms taken over all dimensions but ``dim`` (the first or the last)."""
    dtype = op_math(dtype_name(v))
    x, scale = cast(v, dtype), cast(g, dtype)
    norm = _p_norm(x, 2, _weight_norm_axes(x, dim))
    return x * (scale / norm), norm


@lowers("aten::_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int
) -> tuple[Any, Any]:
    """Gradients of v and g."""
    dtype = op_math(dtype_name(saved_v))
    grad, v, g, norm = (cast(a, dtype) for a in (grad_w, saved_v, saved_g, saved_norms))
    norm = norm.reshape(g.shape)
    along = jnp.sum(grad * v, axis=_weight_norm_axes(v, dim), keepdims=True)
    return (g / norm) * (grad - v * along / (norm * norm)), along / norm
