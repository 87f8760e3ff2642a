"""Fused optimisers and loss scaling.

Hyperparameters are 0-d float64 arrays or Python floats. What is derived from them alone (bias
corrections, step sizes) is computed in float64, as PyTorch's CPU kernels do, and then rounded to
the dtype of the update: 1 - beta2 would lose five digits in float32. The rules are ``exact`` to
receive them unrounded. Updates of reduced floats are computed in float32.

Step counts have been incremented by the Python optimiser. A step whose ``found_inf`` is 1 changes
nothing. Results are the mutated lists in the schema's order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from torch_neuronx.lowering.dtypes import cast, dtype_name, op_math
from torch_neuronx.lowering.layout import flat, is_narrow, unflat
from torch_neuronx.lowering.table import lowers

Tensors = tuple[Any, ...]


def _in_line(rule: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The rule of an optimiser, which computes element by element, on flat arrays."""

    @functools.wraps(rule)
    def function(self: Tensors, *args: Any) -> tuple[Any, ...]:
        lists = [tuple(map(_flat, a)) if isinstance(a, tuple) else a for a in (self, *args)]
        return tuple([_as(p, x) for p, x in zip(self, made, strict=False)] for made in rule(*lists))

    return function


def _flat(x: Any) -> Any:
    return flat(x) if is_narrow(x.shape) else x


def _as(param: Any, x: Any) -> Any:
    """A result in the parameter's shape; step counts are numbers."""
    return unflat(x, param.shape) if is_narrow(param.shape) and x.ndim else x


def _double(x: Any) -> Any:
    """A hyperparameter, or step count, as a 0-d float64 array."""
    return cast(x, "float64").reshape(())


def _unless(found_inf: Any, new: Any, old: Any) -> Any:
    """``new`` in ``old``'s dtype; ``old`` if the gradients overflowed."""
    new = cast(new, dtype_name(old))
    return new if found_inf is None else jnp.where(found_inf.reshape(()) == 1, old, new)


def _prepare(
    grad: Any, dtype: str, maximize: bool, grad_scale: Any, found_inf: Any
) -> tuple[Any, Any]:
    """The gradient to use, and the one to write back (unscaled, sign kept)."""
    g = cast(grad, dtype)
    if grad_scale is not None:
        g = g / cast(grad_scale, dtype).reshape(())
    kept = _unless(found_inf, g, grad)
    return (-g if maximize else g), kept


def _decayed(g: Any, p: Any, weight_decay: Any) -> Any:
    """Gradient plus weight decay; no product where it is zero, which inf would turn into NaN."""
    if isinstance(weight_decay, (int, float)) and weight_decay == 0:
        return g
    factor = cast(weight_decay, dtype_name(g))
    return jnp.where(factor != 0, g + factor * p, g)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    """torch.lerp with a number: the form that is exact at the nearer end."""
    small = jnp.abs(weight) < 0.5
    w = cast(weight, dtype_name(start))
    difference = end - start
    return jnp.where(small, start + w * difference, end - difference * (1 - w))


def _adam(decoupled: bool) -> Callable[..., Any]:
    def rule(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
    ) -> tuple[Any, ...]:
        lr, beta1, beta2 = _double(lr), _double(beta1), _double(beta2)
        lists: tuple[list[Any], ...] = ([], [], [], [], [])
        for i, (param, grad, exp_avg, exp_avg_sq, step) in enumerate(
            zip(self, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)
        ):
            dtype = op_math(dtype_name(param))
            g, kept = _prepare(grad, dtype, maximize, grad_scale, found_inf)
            p, m, v = (cast(x, dtype) for x in (param, exp_avg, exp_avg_sq))
            if decoupled:
                p = p - cast(lr * _double(weight_decay), dtype) * p
            else:
                g = _decayed(g, p, weight_decay)
            count = _double(step)
            step_size = cast(lr / (1 - beta1**count), dtype)
            correction = cast(jnp.sqrt(1 - beta2**count), dtype)
            m = _lerp(m, g, 1 - beta1)
            v = cast(beta2, dtype) * v + cast(1 - beta2, dtype) * g * g
            largest = v
            if amsgrad:
                largest = jnp.maximum(cast(max_exp_avg_sqs[i], dtype), v)
                lists[4].append(_unless(found_inf, largest, max_exp_avg_sqs[i]))
            denominator = jnp.sqrt(largest) / correction + cast(_double(eps), dtype)
            lists[0].append(_unless(found_inf, p - step_size * m / denominator, param))
            lists[1].append(kept)
            lists[2].append(_unless(found_inf, m, exp_avg))
            lists[3].append(_unless(found_inf, v, exp_avg_sq))
        return lists

    rule.__doc__ = "AdamW: decay of the parameter." if decoupled else "Adam: decay as gradient."
    return rule


lowers("aten::_fused_adam", "aten::_fused_adam.tensor_lr", exact=True)(_in_line(_adam(False)))
lowers("aten::_fused_adamw", "aten::_fused_adamw.tensor_lr", exact=True)(_in_line(_adam(True)))


@lowers("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr", exact=True)
@_in_line
def fused_sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> tuple[Any, ...]:
    """SGD with momentum; without momentum the buffer list is empty."""
    params: list[Any] = []
    new_grads: list[Any] = []
    buffers: list[Any] = []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        dtype = op_math(dtype_name(param))
        g, kept = _prepare(grad, dtype, maximize, grad_scale, found_inf)
        p = cast(param, dtype)
        g = _decayed(g, p, weight_decay)
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            factor = cast(_double(momentum), dtype)
            if is_first_step:
                buffer = g
            else:
                buffer = cast(old, dtype) * factor + g * cast(1 - _double(dampening), dtype)
            g = g + buffer * factor if nesterov else buffer
            buffers.append(_unless(found_inf, buffer, old))
        params.append(_unless(found_inf, p - cast(_double(lr), dtype) * g, param))
        new_grads.append(kept)
    return params, new_grads, buffers


def _adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any,
    found_inf: Any,
) -> tuple[list[Any], list[Any], list[Any]]:
    params: list[Any] = []
    new_grads: list[Any] = []
    sums: list[Any] = []
    for param, grad, total, step in zip(self, grads, state_sums, state_steps, strict=True):
        dtype = op_math(dtype_name(param))
        g, kept = _prepare(grad, dtype, maximize, grad_scale, found_inf)
        p = cast(param, dtype)
        g = _decayed(g, p, weight_decay)
        rate = cast(_double(lr) / (1 + (_double(step) - 1) * _double(lr_decay)), dtype)
        s = cast(total, dtype) + g * g
        update = rate * g / (jnp.sqrt(s) + cast(_double(eps), dtype))
        params.append(_unless(found_inf, p - update, param))
        new_grads.append(kept)
        sums.append(_unless(found_inf, s, total))
    return params, new_grads, sums


@lowers("aten::_fused_adagrad", exact=True)
@_in_line
def fused_adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> tuple[Any, ...]:
    """Adagrad. The schema counts the steps among the mutated lists; they stay as they are."""
    lists = _adagrad(
        self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize,
        grad_scale, found_inf,
    )  # fmt: skip
    return (*lists, state_steps)


@lowers("aten::_fused_adagrad.tensor_lr", exact=True)
@_in_line
def fused_adagrad_tensor_lr(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> tuple[Any, ...]:
    """Adagrad with a tensor learning rate."""
    return _adagrad(
        self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize,
        grad_scale, found_inf,
    )  # fmt: skip


# --- loss scaling ------------------------------------------------------------------------------


@lowers("aten::_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(self: Tensors, found_inf: Any, inv_scale: Any) -> tuple[Any, Any]:
    """Gradients times inv_scale, and found_inf set to 1 if any of them was not finite."""
    bad = found_inf
    results = []
    for grad in self:
        dtype = op_math(dtype_name(grad))
        g = cast(grad, dtype)
        bad = jnp.where(jnp.all(jnp.isfinite(g)), bad, jnp.ones((), found_inf.dtype))
        results.append(cast(g * cast(inv_scale, dtype).reshape(()), dtype_name(grad)))
    return results, bad


@lowers("aten::_amp_update_scale")
def amp_update_scale(
    self: Any,
    growth_tracker: Any,
    found_inf: Any,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: int,
) -> tuple[Any, Any]:
    """The next scale and count of good steps.

    The scale shrinks after an overflow and grows after ``growth_interval`` good steps, unless that
    would overflow.
    """
    name = dtype_name(self)
    overflow = cast(found_inf, "float32").reshape(self.shape) != 0
    good = growth_tracker + jnp.ones((), growth_tracker.dtype)
    due = good == growth_interval
    grown = self * cast(scale_growth_factor, name)
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(due.reshape(self.shape), grown, self)
    scale = jnp.where(overflow, self * cast(scale_backoff_factor, name), scale)
    reset = due | overflow.reshape(growth_tracker.shape)
    return scale, jnp.where(reset, jnp.zeros((), growth_tracker.dtype), good)
