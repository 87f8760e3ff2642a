"""Activation functions and softmax, with their gradients.

Reduced floats compute in float32 and round once, as PyTorch's CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast, is_complex, op_math
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.table import lowers


def _wide(out: Any, *xs: Any) -> tuple[Any, ...]:
    """Operands in the dtype that a result of ``out``'s dtype is computed in."""
    dtype = op_math(out.dtype)
    return tuple(cast(x, dtype) for x in xs)


# --- piecewise linear --------------------------------------------------------------------------


@lowers("aten::relu", exact=True)
def relu(self: Any) -> Any:
    """max(self, 0), NaN stays."""
    return jnp.maximum(self, jnp.zeros((), self.dtype))


@lowers("aten::threshold", exact=True)
def threshold(self: Any, threshold: Any, value: Any, *, out: Any) -> Any:
    """``value`` where self <= threshold."""
    x, limit, value = (cast(a, out.dtype) for a in (self, threshold, value))
    return jnp.where(x <= limit, value, x)


@lowers("aten::threshold_backward", exact=True)
def threshold_backward(grad_output: Any, self: Any, threshold: Any, *, out: Any) -> Any:
    """The gradient where self > threshold, else 0."""
    g, x, limit = (cast(a, out.dtype) for a in (grad_output, self, threshold))
    return jnp.where(x <= limit, jnp.zeros((), g.dtype), g)


@lowers("aten::hardtanh", exact=True)
def hardtanh(self: Any, min_val: Any = -1, max_val: Any = 1, *, out: Any) -> Any:
    """self clamped to [min_val, max_val], NaN stays."""
    x, low, high = (cast(a, out.dtype) for a in (self, min_val, max_val))
    return jnp.minimum(jnp.maximum(x, low), high)


@lowers("aten::hardtanh_backward", exact=True)
def hardtanh_backward(grad_output: Any, self: Any, min_val: Any, max_val: Any, *, out: Any) -> Any:
    """The gradient strictly inside the limits, else 0."""
    g, x, low, high = (cast(a, out.dtype) for a in (grad_output, self, min_val, max_val))
    return jnp.where((x <= low) | (x >= high), jnp.zeros((), g.dtype), g)


@lowers("aten::leaky_relu")
def leaky_relu(self: Any, negative_slope: Any = 0.01, *, out: Any) -> Any:
    """self, times negative_slope where it is not positive."""
    x, slope = _wide(out, self, negative_slope)
    return jnp.where(x > 0, x, x * slope)


@lowers("aten::leaky_relu_backward")
def leaky_relu_backward(
    grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool, *, out: Any
) -> Any:
    """Gradient of leaky_relu; the sign of its result is that of its input."""
    g, x, slope = _wide(out, grad_output, self, negative_slope)
    return jnp.where(x > 0, g, g * slope)


@lowers("aten::_prelu_kernel")
def prelu_kernel(self: Any, weight: Any, *, out: Any) -> Any:
    """self, times weight where it is not positive."""
    x, w = _wide(out, self, weight)
    return jnp.where(x > 0, x, w * x)


@lowers("aten::_prelu_kernel_backward")
def prelu_kernel_backward(grad_output: Any, self: Any, weight: Any, *, out: Any) -> Any:
    """Gradients of input and weight, both of the input's shape."""
    g, x, w = _wide(out[0], grad_output, self, weight)
    zero = jnp.zeros((), x.dtype)
    return jnp.where(x > 0, g, w * g), jnp.where(x > 0, zero, x * g)


@lowers("aten::hardswish")
def hardswish(self: Any, *, out: Any) -> Any:
    """self * clamp(self + 3, 0, 6) / 6."""
    (x,) = _wide(out, self)
    return x * jnp.clip(x + 3, 0, 6) / 6


@lowers("aten::hardswish_backward")
def hardswish_backward(grad_output: Any, self: Any, *, out: Any) -> Any:
    """Gradient of hardswish."""
    g, x = _wide(out, grad_output, self)
    middle = g * (x / 3 + 0.5)
    return jnp.where(x <= -3, jnp.zeros((), g.dtype), jnp.where(x < 3, middle, g))


@lowers("aten::hardsigmoid")
def hardsigmoid(self: Any, *, out: Any) -> Any:
    """clamp(self + 3, 0, 6) / 6."""
    (x,) = _wide(out, self)
    return jnp.clip(x + 3, 0, 6) / 6


@lowers("aten::hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Any, self: Any, *, out: Any) -> Any:
    """Gradient of hardsigmoid."""
    g, x = _wide(out, grad_output, self)
    return jnp.where((x > -3) & (x < 3), g / 6, jnp.zeros((), g.dtype))


@lowers("aten::softshrink")
def softshrink(self: Any, lambd: Any = 0.5, *, out: Any) -> Any:
    """self moved towards zero by lambd; NaN stays."""
    x, limit = _wide(out, self, lambd)
    moved = jnp.where(x > limit, x - limit, jnp.where(x < -limit, x + limit, x * 0))
    return jnp.where(jnp.isinf(x) & (jnp.abs(x) <= limit), jnp.zeros((), x.dtype), moved)


@lowers("aten::hardshrink", exact=True)
def hardshrink(self: Any, lambd: Any = 0.5, *, out: Any) -> Any:
    """0 inside [-lambd, lambd], else self."""
    x, limit = (cast(a, out.dtype) for a in (self, lambd))
    return jnp.where((x >= -limit) & (x <= limit), jnp.zeros((), x.dtype), x)


@lowers("aten::softshrink_backward", "aten::hardshrink_backward", exact=True)
def shrink_backward(grad_output: Any, self: Any, lambd: Any, *, out: Any) -> Any:
    """The gradient outside [-lambd, lambd], else 0."""
    g, x, limit = (cast(a, out.dtype) for a in (grad_output, self, lambd))
    return jnp.where((x >= -limit) & (x <= limit), jnp.zeros((), g.dtype), g)


# --- smooth ------------------------------------------------------------------------------------


@lowers("aten::sigmoid_backward")
def sigmoid_backward(grad_output: Any, output: Any, *, out: Any) -> Any:
    """grad * (1 - output) * output."""
    g, y = _wide(out, grad_output, output)
    slope = (1 - y) * y
    return g * (jnp.conj(slope) if is_complex(out.dtype) else slope)


@lowers("aten::tanh_backward")
def tanh_backward(grad_output: Any, output: Any, *, out: Any) -> Any:
    """grad * (1 - output^2)."""
    g, y = _wide(out, grad_output, output)
    slope = 1 - y * y
    return g * (jnp.conj(slope) if is_complex(out.dtype) else slope)


@lowers("aten::logit_backward")
def logit_backward(grad_output: Any, self: Any, eps: Any = None, *, out: Any) -> Any:
    """grad / (x (1 - x)); outside [eps, 1 - eps] 0, or NaN outside [0, 1] without eps."""
    g, x = _wide(out, grad_output, self)
    slope = g / (x * (1 - x))
    if eps is None:
        return jnp.where((x < 0) | (x > 1), jnp.full((), jnp.nan, x.dtype), slope)
    low = cast(eps, op_math(out.dtype))
    return jnp.where((x < low) | (x > 1 - low), jnp.zeros((), x.dtype), slope)


_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@lowers("aten::gelu")
def gelu(self: Any, approximate: str = "none", *, out: Any) -> Any:
    """x * Phi(x), or its tanh approximation."""
    (x,) = _wide(out, self)
    if approximate == "tanh":
        inner = _TANH_SCALE * (x + _TANH_CUBE * x * x * x)
        return 0.5 * x * (1 + jnp.tanh(inner))
    return x * 0.5 * (1 + lax.erf(x * _SQRT_HALF))


@lowers("aten::gelu_backward")
def gelu_backward(grad_output: Any, self: Any, approximate: str = "none", *, out: Any) -> Any:
    """Gradient of gelu."""
    g, x = _wide(out, grad_output, self)
    if approximate == "tanh":
        square = x * x
        t = jnp.tanh(_TANH_SCALE * (x + _TANH_CUBE * square * x))
        slope = 0.5 * x * (1 - t * t) * (_TANH_SCALE * (1 + 3 * _TANH_CUBE * square))
        return g * (0.5 * (1 + t) + slope)
    cdf = 0.5 * (1 + lax.erf(x * _SQRT_HALF))
    pdf = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return g * (cdf + x * pdf)


@lowers("aten::silu")
def silu(self: Any, *, out: Any) -> Any:
    """x * sigmoid(x)."""
    (x,) = _wide(out, self)
    return x / (1 + jnp.exp(-x))


@lowers("aten::silu_backward")
def silu_backward(grad_output: Any, self: Any, *, out: Any) -> Any:
    """Gradient of silu."""
    g, x = _wide(out, grad_output, self)
    s = 1 / (1 + jnp.exp(-x))
    return g * s * (1 + x * (1 - s))


def _elu(x: Any, alpha: Any, scale: Any, input_scale: Any) -> Any:
    return jnp.where(x <= 0, jnp.expm1(x * input_scale) * (alpha * scale), x * scale)


@lowers("aten::elu")
def elu(self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1, *, out: Any) -> Any:
    """scale * x, or scale * alpha * (exp(input_scale * x) - 1) where x <= 0."""
    return _elu(*_wide(out, self, alpha, scale, input_scale))


@lowers("aten::celu")
def celu(self: Any, alpha: Any = 1.0, *, out: Any) -> Any:
    """elu with input scale 1 / alpha."""
    x, alpha = _wide(out, self, alpha)
    one = jnp.ones((), x.dtype)
    return _elu(x, alpha, one, one / alpha)


@lowers("aten::elu_backward")
def elu_backward(
    grad_output: Any,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: Any,
    *,
    out: Any,
) -> Any:
    """Gradient of elu from its input or its result."""
    g, x, alpha, scale, inner = _wide(out, grad_output, self_or_result, alpha, scale, input_scale)
    low = alpha * scale
    if is_result:
        negative = g * inner * (x + low)
    else:
        negative = g * inner * low * jnp.exp(x * inner)
    return jnp.where(x <= 0, negative, g * scale)


@lowers("aten::softplus")
def softplus(self: Any, beta: Any = 1, threshold: Any = 20, *, out: Any) -> Any:
    """log(1 + exp(beta x)) / beta, x itself above the threshold."""
    x, beta, threshold = _wide(out, self, beta, threshold)
    scaled = x * beta
    return jnp.where(scaled > threshold, x, jnp.log1p(jnp.exp(scaled)) / beta)


@lowers("aten::softplus_backward")
def softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any, *, out: Any) -> Any:
    """Gradient of softplus."""
    g, x, beta, threshold = _wide(out, grad_output, self, beta, threshold)
    scaled = x * beta
    z = jnp.exp(scaled)
    return jnp.where(scaled > threshold, g, g * z / (z + 1))


@lowers("aten::mish")
def mish(self: Any, *, out: Any) -> Any:
    """x * tanh(log(1 + exp(x)))."""
    (x,) = _wide(out, self)
    return x * jnp.tanh(jnp.log1p(jnp.exp(x)))


@lowers("aten::mish_backward")
def mish_backward(grad_output: Any, self: Any, *, out: Any) -> Any:
    """Gradient of mish."""
    g, x = _wide(out, grad_output, self)
    s = 1 / (1 + jnp.exp(-x))
    t = jnp.tanh(jnp.log1p(jnp.exp(x)))
    return g * (t + x * s * (1 - t * t))


@lowers("aten::log_sigmoid_forward")
def log_sigmoid_forward(self: Any, *, out: Any) -> Any:
    """log(sigmoid(x)), and exp(-|x|) if PyTorch keeps it for the gradient."""
    (x,) = _wide(out[0], self)
    z = jnp.exp(-jnp.abs(x))
    buffer = z if out[1].shape == tuple(x.shape) else jnp.zeros(out[1].shape, x.dtype)
    return jnp.minimum(x, 0) - jnp.log1p(z), buffer


@lowers("aten::log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any, *, out: Any) -> Any:
    """Gradient of log_sigmoid: grad * sigmoid(-x)."""
    g, x = _wide(out, grad_output, self)
    z = jnp.exp(-jnp.abs(x))
    share = z / (1 + z)
    return g * jnp.where(x < 0, 1 - share, share)


def _halves(x: Any, dim: int) -> tuple[Any, Any, int]:
    dim = dim % x.ndim
    half = x.shape[dim] // 2
    return (
        lax.slice_in_dim(x, 0, half, axis=dim),
        lax.slice_in_dim(x, half, 2 * half, axis=dim),
        dim,
    )


@lowers("aten::glu")
def glu(self: Any, dim: int = -1, *, out: Any) -> Any:
    """First half times sigmoid of the second half."""
    (x,) = _wide(out, self)
    a, b, _ = _halves(x, dim)
    return a * (1 / (1 + jnp.exp(-b)))


@lowers("aten::glu_backward")
def glu_backward(grad_output: Any, self: Any, dim: int, *, out: Any) -> Any:
    """Gradient of glu."""
    g, x = _wide(out, grad_output, self)
    a, b, dim = _halves(x, dim)
    s = 1 / (1 + jnp.exp(-b))
    return jnp.concatenate([g * s, g * a * s * (1 - s)], axis=dim)


@lowers("aten::glu_jvp")
def glu_jvp(glu: Any, x: Any, dx: Any, dim: int, *, out: Any) -> Any:
    """Directional derivative of glu at ``x`` along ``dx``."""
    y, x, dx = _wide(out, glu, x, dx)
    (_, b, _), (da, db, _) = _halves(x, dim), _halves(dx, dim)
    s = 1 / (1 + jnp.exp(-b))
    return da * s + db * (1 - s) * y


@lowers("aten::glu_backward_jvp")
def glu_backward_jvp(
    grad_x: Any, grad_glu: Any, x: Any, dgrad_glu: Any, dx: Any, dim: int, *, out: Any
) -> Any:
    """Directional derivative of glu_backward in its gradient and its operand."""
    g, x, dg, dx = _wide(out, grad_glu, x, dgrad_glu, dx)
    (a, b, axis), (da, db, _) = _halves(x, dim), _halves(dx, dim)
    s = 1 / (1 + jnp.exp(-b))
    slope = s * (1 - s)
    first = dg * s + g * slope * db
    second = slope * (dg * a + g * da + g * a * (1 - 2 * s) * db)
    return jnp.concatenate([first, second], axis=axis)


# --- randomised leaky ReLU ---------------------------------------------------------------------


def _rrelu(
    self: Any, noise: Any, lower: Any, upper: Any, training: bool, out: Any, rng: Stream
) -> tuple[Any, Any]:
    x, low, high = _wide(out, self, lower, upper)
    if not training:
        return jnp.where(x <= 0, x * ((low + high) / 2), x), noise
    slope = low + cast(rng.uniform(tuple(x.shape)), op_math(out.dtype)) * (high - low)
    slope = jnp.where(x <= 0, slope, jnp.ones((), x.dtype))
    return x * slope, slope


@lowers("aten::rrelu_with_noise", "aten::rrelu_with_noise_functional")
def rrelu_with_noise(
    self: Any,
    noise: Any,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    generator: Any = None,
    *,
    out: Any,
    rng: Stream,
) -> Any:
    """leaky_relu with slopes uniform in [lower, upper), one draw an element; result and slopes."""
    return _rrelu(self, noise, lower, upper, training, out[0], rng)


@lowers("aten::rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    grad_output: Any,
    self: Any,
    noise: Any,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
    *,
    out: Any,
) -> Any:
    """Gradient of rrelu_with_noise."""
    g, x, noise, low, high = _wide(out, grad_output, self, noise, lower, upper)
    mean = jnp.where(x > 0, g, g * ((low + high) / 2))
    if not training:
        return mean
    # ATen takes the mean slope when the interval is a point.
    return jnp.where(high - low > 1e-6, g * noise, mean)


# --- softmax -----------------------------------------------------------------------------------


def _along(function: Callable[..., Any], dim: int, *xs: Any) -> Any:
    """``function(axis, *xs)`` along ``dim``; 0-d arrays count as 1-d."""
    if xs[0].ndim == 0:
        return function(0, *(x.reshape(1) for x in xs)).reshape(())
    return function(dim % xs[0].ndim, *xs)


def _softmax_axis(axis: int, x: Any) -> Any:
    if x.size == 0:
        return x
    e = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
    return e / jnp.sum(e, axis=axis, keepdims=True)


@lowers("aten::_softmax")
def softmax(self: Any, dim: int, half_to_float: bool, *, out: Any) -> Any:
    """exp(x) / sum(exp(x)) along dim."""
    return _along(_softmax_axis, dim, *_wide(out, self))


@lowers("aten::_safe_softmax")
def safe_softmax(self: Any, dim: int, dtype: str | None = None, *, out: Any) -> Any:
    """softmax, 0 where a whole row is -inf."""

    def row(axis: int, x: Any) -> Any:
        if x.size == 0:
            return x
        hidden = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
        return jnp.where(hidden, jnp.zeros((), x.dtype), _softmax_axis(axis, x))

    return _along(row, dim, *_wide(out, self))


@lowers("aten::_log_softmax")
def log_softmax(self: Any, dim: int, half_to_float: bool, *, out: Any) -> Any:
    """x - log(sum(exp(x))) along dim."""

    def row(axis: int, x: Any) -> Any:
        if x.size == 0:
            return x
        shifted = x - jnp.max(x, axis=axis, keepdims=True)
        return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))

    return _along(row, dim, *_wide(out, self))


@lowers("aten::_softmax_backward_data")
def softmax_backward_data(
    grad_output: Any, output: Any, dim: int, input_dtype: str, *, out: Any
) -> Any:
    """(grad - sum(grad * output)) * output along dim."""

    def row(axis: int, g: Any, y: Any) -> Any:
        return (g - jnp.sum(g * y, axis=axis, keepdims=True)) * y

    return _along(row, dim, *_wide(out, grad_output, output))


@lowers("aten::_log_softmax_backward_data")
def log_softmax_backward_data(
    grad_output: Any, output: Any, dim: int, input_dtype: str, *, out: Any
) -> Any:
    """grad - exp(output) * sum(grad) along dim."""

    def row(axis: int, g: Any, y: Any) -> Any:
        return g - jnp.exp(y) * jnp.sum(g, axis=axis, keepdims=True)

    return _along(row, dim, *_wide(out, grad_output, output))
