"""Loss functions and their gradients. ``reduction`` is 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers


def _wide(out: Any, *xs: Any) -> tuple[Any, ...]:
    dtype = op_math(out.dtype)
    return tuple(cast(x, dtype) for x in xs)


def _reduce(loss: Any, reduction: int) -> Any:
    if reduction == 1:
        return jnp.sum(loss) / loss.size if loss.size else jnp.full((), jnp.nan, loss.dtype)
    return jnp.sum(loss) if reduction == 2 else loss


def _share(reduction: int, *xs: Any) -> float:
    """What each element contributes to the result: 1, or 1/n for the mean."""
    n = math.prod(jnp.broadcast_shapes(*(x.shape for x in xs)))
    return 1 / max(n, 1) if reduction == 1 else 1.0


# --- negative log likelihood -------------------------------------------------------------------


def _targets(target: Any, classes: int, ignore_index: int, checks: Checks) -> tuple[Any, Any]:
    """Targets as int64 in [0, classes), and where they count."""
    target = target.astype(np.int64)
    counts = target != ignore_index
    inside = (target >= 0) & (target < classes)
    checks.require(inside | ~counts, target, "IndexError", "Target {value} is out of bounds.")
    return jnp.clip(target, 0, max(classes - 1, 0)), counts & inside


def _nll(self: Any, target: Any, axis: int) -> Any:
    """``self`` at the target class along ``axis``."""
    picked = jnp.take_along_axis(
        self, jnp.expand_dims(target, axis), axis=axis, mode="promise_in_bounds"
    )
    return jnp.squeeze(picked, axis)


def _class_weights(weight: Any, target: Any, counts: Any, dtype: Any) -> Any:
    if weight is None:
        return counts.astype(dtype)
    chosen = weight.astype(dtype).at[target].get(mode="promise_in_bounds")
    return jnp.where(counts, chosen, jnp.zeros((), dtype))


@lowers("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss_forward(
    self: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """-weight[target] * self[target], reduced, and the weight it was divided by for the mean.

    ``self`` (N, C, d1, ...) or (C); ``target`` (N, d1, ...) or ().
    """
    (x,) = _wide(out[0], self)
    axis = min(1, x.ndim - 1)
    target = target.reshape(x.shape[:axis] + x.shape[axis + 1 :])
    target, counts = _targets(target, x.shape[axis], ignore_index, checks)
    w = _class_weights(weight, target, counts, x.dtype)
    if x.size == 0:
        loss = jnp.zeros(target.shape, x.dtype)
    else:
        # Not w * x alone: an ignored -inf must not become NaN.
        loss = jnp.where(counts, -w * _nll(x, target, axis), jnp.zeros((), x.dtype))
    if reduction == 0 and x.ndim > 1:  # without a batch dimension CPU reports the weight
        return loss, jnp.zeros(out[1].shape, x.dtype)
    total = jnp.sum(w)
    value = jnp.sum(loss)
    return (value / total if reduction == 1 else value), total


@lowers("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Any,
    self: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """-weight[target] * grad at each target, divided by the total weight for the mean."""
    g, total = _wide(out, grad_output, total_weight)
    axis = min(1, self.ndim - 1)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    target, counts = _targets(target, self.shape[axis], ignore_index, checks)
    w = _class_weights(weight, target, counts, g.dtype)
    each = -w * (g / total if reduction == 1 else g)
    # A comparison, not a scatter: element-wise code is faster everywhere and fuses.
    classes = lax.broadcasted_iota(np.int64, self.shape, axis)
    hit = (classes == jnp.expand_dims(target, axis)) & jnp.expand_dims(counts, axis)
    each = jnp.broadcast_to(each, target.shape)
    return jnp.where(hit, jnp.expand_dims(each, axis), jnp.zeros((), g.dtype))


# --- element-wise ------------------------------------------------------------------------------


@lowers("aten::mse_loss")
def mse_loss(self: Any, target: Any, reduction: int = 1, *, out: Any) -> Any:
    """(self - target)^2."""
    x, t = _wide(out, self, target)
    return _reduce((x - t) * (x - t), reduction)


@lowers("aten::mse_loss_backward")
def mse_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int, *, out: Any) -> Any:
    """2 (self - target) * grad."""
    g, x, t = _wide(out, grad_output, self, target)
    return (2 * _share(reduction, self, target)) * (x - t) * g


@lowers("aten::smooth_l1_loss")
def smooth_l1_loss(self: Any, target: Any, reduction: int = 1, beta: Any = 1.0, *, out: Any) -> Any:
    """d^2 / (2 beta) for |d| < beta, else |d| - beta / 2."""
    x, t, beta = _wide(out, self, target, beta)
    d = jnp.abs(x - t)
    return _reduce(jnp.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta), reduction)


@lowers("aten::smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, beta: Any, *, out: Any
) -> Any:
    """grad * clamp(d / beta, -1, 1)."""
    g, x, t, beta = _wide(out, grad_output, self, target, beta)
    share = _share(reduction, self, target)
    d = x - t
    inner = share * d * g / beta
    return jnp.where(d <= -beta, -share * g, jnp.where(d >= beta, share * g, inner))


@lowers("aten::huber_loss")
def huber_loss(self: Any, target: Any, reduction: int = 1, delta: Any = 1.0, *, out: Any) -> Any:
    """d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2)."""
    x, t, delta = _wide(out, self, target, delta)
    d = jnp.abs(x - t)
    return _reduce(jnp.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta)), reduction)


@lowers("aten::huber_loss_backward")
def huber_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, delta: Any, *, out: Any
) -> Any:
    """grad * clamp(d, -delta, delta)."""
    g, x, t, delta = _wide(out, grad_output, self, target, delta)
    share = _share(reduction, self, target)
    d = x - t
    far = share * g * delta
    return jnp.where(d <= -delta, -far, jnp.where(d >= delta, far, share * d * g))


@lowers("aten::soft_margin_loss")
def soft_margin_loss(self: Any, target: Any, reduction: int = 1, *, out: Any) -> Any:
    """log(1 + exp(-target * self))."""
    x, t = _wide(out, self, target)
    return _reduce(jnp.log1p(jnp.exp(-t * x)), reduction)


@lowers("aten::soft_margin_loss_backward")
def soft_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, *, out: Any
) -> Any:
    """Gradient of soft_margin_loss."""
    g, x, t = _wide(out, grad_output, self, target)
    z = jnp.exp(-t * x)
    return -_share(reduction, self, target) * t * z / (z + 1) * g


# --- binary cross entropy ----------------------------------------------------------------------


def _inside_unit(x: Any, what: str, checks: Checks) -> None:
    checks.require(
        (x >= 0) & (x <= 1),
        np.int64(0),
        "RuntimeError",
        f"all elements of {what} should be between 0 and 1",
    )


@lowers("aten::binary_cross_entropy")
def binary_cross_entropy(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """-(t log x + (1 - t) log(1 - x)) with logarithms no smaller than -100."""
    x, t = _wide(out, self, target)
    _inside_unit(x, "input", checks)
    _inside_unit(t, "target", checks)
    loss = (t - 1) * jnp.maximum(jnp.log1p(-x), -100) - t * jnp.maximum(jnp.log(x), -100)
    if weight is not None:
        loss = loss * cast(weight, op_math(out.dtype))
    return _reduce(loss, reduction)


@lowers("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Any,
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    *,
    out: Any,
) -> Any:
    """grad * (x - t) / (x (1 - x)), the divisor no smaller than 1e-12."""
    g, x, t = _wide(out, grad_output, self, target)
    grad = g * (x - t) / jnp.maximum((1 - x) * x, 1e-12)
    if weight is not None:
        grad = grad * cast(weight, op_math(out.dtype))
    return grad * _share(reduction, self)


@lowers("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Any,
    target: Any,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = 1,
    *,
    out: Any,
) -> Any:
    """binary_cross_entropy of sigmoid(self), computed from the logits."""
    x, t = _wide(out, self, target)
    dtype = op_math(out.dtype)
    log_sigmoid = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    if pos_weight is not None:
        log_sigmoid = ((cast(pos_weight, dtype) - 1) * t + 1) * log_sigmoid
    loss = (1 - t) * x - log_sigmoid
    if weight is not None:
        loss = loss * cast(weight, dtype)
    return _reduce(loss, reduction)


# --- margins -----------------------------------------------------------------------------------


def _margin_terms(
    self: Any, target: Any, p: int, margin: Any, weight: Any, checks: Checks
) -> tuple[Any, Any, Any, Any]:
    """x as (N, C), where the target stands, hinge arguments, class weights (N, 1)."""
    x = self.reshape(-1, self.shape[-1]) if self.ndim else self.reshape(1, 1)
    t = target.reshape(-1).astype(np.int64)
    inside = (t >= 0) & (t < x.shape[1])
    checks.require(inside, t, "RuntimeError", "target out of range")
    t = jnp.clip(t, 0, x.shape[1] - 1)
    hit = lax.broadcasted_iota(np.int64, x.shape, 1) == t[:, None]
    own = jnp.take_along_axis(x, t[:, None], axis=1, mode="promise_in_bounds")
    hinge = cast(margin, x.dtype.name) - own + x
    w = jnp.ones((x.shape[0], 1), x.dtype)
    if weight is not None:
        w = cast(weight, x.dtype.name).at[t].get(mode="promise_in_bounds")[:, None]
    return x, hit, hinge, w


@lowers("aten::multi_margin_loss", static=("p",))
def multi_margin_loss(
    self: Any,
    target: Any,
    p: Any = 1,
    margin: Any = 1,
    weight: Any = None,
    reduction: int = 1,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """sum over other classes of max(0, margin - x[t] + x[c])^p / C."""
    (x,) = _wide(out, self)
    x, hit, hinge, w = _margin_terms(x, target, p, margin, weight, checks)
    positive = jnp.where(~hit & (hinge > 0), hinge, jnp.zeros((), x.dtype))
    terms = w * (positive if p == 1 else positive * positive)
    loss = jnp.sum(terms, axis=1) / x.shape[1]
    return _reduce(loss, reduction).reshape(out.shape)


@lowers("aten::multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: Any,
    self: Any,
    target: Any,
    p: Any,
    margin: Any,
    weight: Any = None,
    reduction: int = 1,
    *,
    out: Any,
    checks: Checks,
) -> Any:
    """Gradient of multi_margin_loss."""
    g, x = _wide(out, grad_output, self)
    x, hit, hinge, w = _margin_terms(x, target, p, margin, weight, checks)
    share = (1 / x.shape[0] if reduction == 1 else 1.0) / x.shape[1]
    slope = jnp.ones((), x.dtype) if p == 1 else 2 * hinge
    other = jnp.where(~hit & (hinge > 0), share * w * slope, jnp.zeros((), x.dtype))
    grad = jnp.where(hit, -jnp.sum(other, axis=1, keepdims=True), other)
    each = g.reshape(-1, 1) if g.ndim else g
    return (grad * each).reshape(out.shape)


def _multilabel_terms(x: Any, target: Any, is_target: Any) -> tuple[Any, Any, Any]:
    """For (N, labels, C): hinges that count, places of the labels, which labels count."""
    t = target.reshape(x.shape).astype(np.int64)
    valid = jnp.cumsum((t < 0).astype(np.int64), axis=1) == 0  # up to the first negative
    place = jnp.clip(t, 0, x.shape[1] - 1)
    own = jnp.take_along_axis(x, place, axis=1, mode="promise_in_bounds")
    hinge = 1 - own[:, :, None] + x[:, None, :]
    counts = valid[:, :, None] & (is_target[:, None, :] == 0) & (hinge > 0)
    return jnp.where(counts, hinge, jnp.zeros((), x.dtype)), place, valid


@lowers("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(
    self: Any, target: Any, reduction: int, *, out: Any, checks: Checks
) -> tuple[Any, Any]:
    """sum of max(0, 1 - x[label] + x[other]) / C over labels and others, and the labels as 0, 1.

    A row's labels end at its first -1.
    """
    x = cast(self, op_math(out[0].dtype))
    shape = (-1, self.shape[-1]) if self.ndim else (1, 1)
    if x.size == 0:
        zeros = jnp.zeros(out[0].shape, x.dtype)
        return zeros, jnp.zeros(out[1].shape, x.dtype)
    x, t = x.reshape(shape), target.reshape(shape).astype(np.int64)
    inside = (t >= -1) & (t < x.shape[1])
    checks.require(inside, t, "RuntimeError", "argument #2 'target' is out of range")
    valid = jnp.cumsum((t < 0).astype(np.int64), axis=1) == 0
    rows = lax.broadcasted_iota(np.int64, x.shape, 0)
    marked = jnp.where(valid, t, x.shape[1])
    is_target = jnp.zeros(x.shape, x.dtype).at[rows, marked].set(1, mode="drop")
    hinge, _, _ = _multilabel_terms(x, t, is_target)
    loss = jnp.sum(hinge, axis=(1, 2)) / x.shape[1]
    return _reduce(loss, reduction).reshape(out[0].shape), is_target.reshape(out[1].shape)


@lowers("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, is_target: Any, *, out: Any
) -> Any:
    """Gradient of multilabel_margin_loss_forward."""
    g, x, marks = _wide(out, grad_output, self, is_target)
    if x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    shape = (-1, self.shape[-1]) if self.ndim else (1, 1)
    x, marks = x.reshape(shape), marks.reshape(shape)
    hinge, place, _ = _multilabel_terms(x, target, marks)
    active = (hinge > 0).astype(x.dtype)
    rows = lax.broadcasted_iota(np.int64, x.shape, 0)
    grad = jnp.sum(active, axis=1).at[rows, place].add(-jnp.sum(active, axis=2))
    share = (1 / x.shape[0] if reduction == 1 else 1.0) / x.shape[1]
    each = g.reshape(-1, 1) if g.ndim else g
    return (grad * share * each).reshape(out.shape)
