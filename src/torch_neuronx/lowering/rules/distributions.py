"""Gamma, Dirichlet, Poisson and binomial numbers by rejection, and their reparameterised gradients.

Rejection takes as many rounds as the unluckiest element needs. Every element has one Philox block
of four words for each round (``philox.Stream.rounds``): the offset advances by four an element,
whatever happens, and an element's number depends on its own block alone. Recipes:

* gamma: Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000):
  words 0 and 1 of a round make the normal, word 2 the uniform; word 3 of round 0 boosts alpha < 1.
* Dirichlet: gammas over their sum along the last dimension.
* Poisson below 10: Knuth's product of uniforms, four a round. From 10: Hormann's PTRS, "The
  transformed rejection method for generating Poisson random variables", Insurance: Mathematics
  and Economics 12 (1993), words 0 and 1.
* binomial with fewer than 10 expected successes: a sum of geometrics, four a round. Else Hormann's
  BTRS, "The generation of binomial random variates", J. Stat. Comput. Simul. 46 (1993), words 0
  and 1.

Acceptance ratios are formed so that float32 carries them: the logarithm of a probability is a
deviance (a small number where samples lie) and Stirling corrections, not a difference of lgammas.
The gradients are PyTorch's approximations (ATen/native/Distributions.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.table import lowers

Bits = Callable[[Any], Any]


def _unit(bits: Any) -> Any:
    """Uniform in [0, 1): 24 bits."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _open(bits: Any) -> Any:
    """Uniform in (0, 1): 23 bits and a half."""
    return ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def _until_done(pending: Any, step: Callable[[Any, Any, Any], Any], state: Any) -> Any:
    """Repeat ``step(round, pending, state) -> (pending, state)`` until nothing is pending."""

    def body(carry: Any) -> Any:
        round_, pending, state = carry
        pending, state = step(round_, pending, state)
        return round_ + np.uint32(1), pending, state

    carry = (jnp.uint32(0), pending, state)
    return lax.while_loop(lambda c: jnp.any(c[1]), body, carry)[2]


# --- gamma and Dirichlet -----------------------------------------------------------------------


def _log_gamma_sample(alpha: Any, rng: Stream) -> Any:
    """Logarithm of a standard gamma number (float32): small alpha gives numbers below float32."""
    bits = rng.rounds(tuple(alpha.shape))
    small = alpha < 1
    shape = jnp.where(small, alpha + 1, alpha)
    d = shape - np.float32(1 / 3)
    c = 1 / jnp.sqrt(9 * d)

    def step(round_: Any, pending: Any, value: Any) -> Any:
        words = bits(round_)
        radius = jnp.sqrt(-2 * jnp.log(_open(words[0])))
        x = radius * jnp.cos(np.float32(2 * math.pi) * _unit(words[1]))
        y = 1 + c * x
        u = _open(words[2])
        log_v = 3 * jnp.log(jnp.where(y > 0, y, jnp.ones_like(y)))
        v = jnp.exp(log_v)
        accepted = (y > 0) & (jnp.log(u) < 0.5 * x * x + d * (1 - v + log_v))
        value = jnp.where(pending & accepted, jnp.log(d) + log_v, value)
        return pending & ~accepted, value

    # Where alpha is not positive there is nothing to find.
    value = _until_done(alpha > 0, step, jnp.full_like(alpha, -np.inf))
    boost = jnp.log(_open(bits(np.uint32(0))[3])) / jnp.where(small, alpha, jnp.ones_like(alpha))
    return jnp.where(small & (alpha > 0), value + boost, value)


def _tiny(dtype: str) -> Any:
    return np.finfo(np.float32).tiny if dtype != "float16" else np.float32(2.0**-14)


@lowers("aten::_standard_gamma")
def standard_gamma(self: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Gamma numbers of shape parameter ``self``, at least the smallest normal number."""
    sample = jnp.exp(_log_gamma_sample(cast(self, "float32"), rng))
    return jnp.maximum(sample, _tiny(out.dtype))


@lowers("aten::_sample_dirichlet")
def sample_dirichlet(self: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Dirichlet numbers with concentrations along the last dimension."""
    logs = _log_gamma_sample(cast(self, "float32"), rng)
    if not logs.ndim:
        return jnp.ones_like(logs)
    logs = logs - jnp.max(logs, axis=-1, keepdims=True)
    parts = jnp.exp(logs)
    share = parts / jnp.sum(parts, axis=-1, keepdims=True)
    return jnp.clip(share, _tiny(out.dtype), np.float32(1 - 2.0**-24))


# --- Poisson and binomial ----------------------------------------------------------------------


def _stirling(k: Any) -> Any:
    """log(k!) less (k + 1/2) log(k + 1) - (k + 1) + log(2 pi) / 2, for k >= 0.

    The asymptotic series in 1 / (k + 1); exact to 2e-7 from k = 2, tabulated below.
    """
    inverse = 1 / (k + 1)
    z = inverse * inverse
    series = (1 / 12 - (1 / 360 - (1 / 1260 - z / 1680) * z) * z) * inverse
    first = jnp.where(k < 0.5, np.float32(0.0810614667953272), np.float32(0.0413406959554092))
    return jnp.where(k < 1.5, first, series).astype(k.dtype)


def _deviance(x: Any, mean: Any) -> Any:
    """x log(x / mean) - (x - mean), for x >= 0: a series where x is near the mean.

    Loader, "Fast and accurate computation of binomial probabilities" (2000).
    """
    difference, total = x - mean, x + mean
    v = difference / total
    square = v * v
    series = jnp.zeros_like(x)
    for j in range(6, 0, -1):
        series = (series + 1 / (2 * j + 1)) * square
    near = difference * v + 2 * x * v * series
    safe = jnp.where(x > 0, x, jnp.ones_like(x))
    far = jnp.where(x > 0, x * jnp.log(safe / mean), jnp.zeros_like(x)) - difference
    return jnp.where(jnp.abs(v) < 0.1, near, far)


def _error(k: Any) -> Any:
    """log(k!) - (k log(k) - k + log(2 pi k) / 2); for k = 0 with log(2 pi k) / 2 taken as 0."""
    safe = jnp.maximum(k, 1)
    # From the form around k + 1 to that around k.
    shift = (safe + 0.5) * jnp.log1p(1 / safe) - 1
    return jnp.where(k < 0.5, jnp.zeros_like(k), _stirling(safe) + shift)


def _root(k: Any) -> Any:
    """log(2 pi k) / 2, 0 for k = 0."""
    return jnp.where(k < 0.5, jnp.zeros_like(k), 0.5 * jnp.log(2 * math.pi * jnp.maximum(k, 1)))


def _poisson(rate: Any, rng: Stream) -> Any:
    bits = rng.rounds(tuple(rate.shape))
    large = rate >= 10
    floor = jnp.exp(-jnp.where(large, jnp.ones_like(rate), rate))
    mean = jnp.where(large, rate, jnp.full_like(rate, 10))
    b = 0.931 + 2.53 * jnp.sqrt(mean)
    a = -0.059 + 0.02483 * b
    log_inverse_alpha = jnp.log(1.1239 + 1.1328 / (b - 3.4))
    tight = 0.9277 - 3.6224 / (b - 2)

    def step(round_: Any, pending: Any, state: Any) -> Any:
        k, product = state
        words = bits(round_)
        # Knuth, for small rates: uniforms until their product falls below exp(-rate).
        for i in range(4):
            counting = pending & ~large
            product = jnp.where(counting, product * _open(words[i]), product)
            ended = counting & (product <= floor)
            k = jnp.where(counting & ~ended, k + 1, k)
            pending = pending & ~ended
        # PTRS, for large ones.
        u, v = _open(words[0]) - 0.5, _open(words[1])
        us = 0.5 - jnp.abs(u)
        proposal = jnp.floor((2 * a / us + b) * u + mean + 0.43)
        safe = jnp.maximum(proposal, 0)
        ratio = jnp.log(v) + log_inverse_alpha - jnp.log(a / (us * us) + b)
        log_probability = -_deviance(safe, mean) - _root(safe) - _error(safe)
        accepted = ((us >= 0.07) & (v <= tight)) | (ratio <= log_probability)
        accepted = large & pending & accepted & (proposal >= 0)
        k = jnp.where(accepted, proposal, k)
        return pending & ~accepted, (k, product)

    finite = (rate > 0) & (rate < np.inf)
    k, _ = _until_done(finite, step, (jnp.zeros_like(rate), jnp.ones_like(rate)))
    return jnp.where(jnp.isnan(rate) | jnp.isinf(rate), rate, k)


@lowers("aten::poisson")
def poisson(self: Any, generator: Any = None, *, out: Any, rng: Stream, checks: Checks) -> Any:
    """Poisson numbers with rates ``self``."""
    rate = cast(self, "float32")
    checks.require(
        rate >= 0,
        np.int64(0),
        "RuntimeError",
        "invalid Poisson rate, expected rate to be non-negative",
    )
    return _poisson(rate, rng)


def _binomial(count: Any, p: Any, rng: Stream) -> Any:
    """Successes of ``count`` trials of chance ``p`` in (0, 1/2]."""
    bits = rng.rounds(tuple(count.shape))
    possible = (count > 0) & (p > 0)
    large = possible & (count * p >= 10)
    n = jnp.where(large, count, jnp.full_like(count, 100))
    chance = jnp.where(large, p, jnp.full_like(p, 0.5))
    log_failure = jnp.log1p(-jnp.where(possible, p, jnp.full_like(p, 0.5)))
    deviation = jnp.sqrt(n * chance * (1 - chance))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * chance
    centre = n * chance + 0.5
    tight = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((n + 1) * chance)

    def log_weight(k: Any) -> Any:
        """Logarithm of k's probability, up to what does not depend on k."""
        rest = n - k
        return -(
            _deviance(k, n * chance)
            + _deviance(rest, n * (1 - chance))
            + _root(k)
            + _root(rest)
            + _error(k)
            + _error(rest)
        )

    at_mode = log_weight(mode)

    def step(round_: Any, pending: Any, state: Any) -> Any:
        k, used = state
        words = bits(round_)
        # Gaps between successes are geometric.
        for i in range(4):
            counting = pending & ~large
            gap = jnp.maximum(jnp.ceil(jnp.log(_open(words[i])) / log_failure), 1)
            used = jnp.where(counting, used + gap, used)
            ended = counting & (used > count)
            k = jnp.where(counting & ~ended, k + 1, k)
            pending = pending & ~ended
        # BTRS.
        u, v = _open(words[0]) - 0.5, _open(words[1])
        us = 0.5 - jnp.abs(u)
        proposal = jnp.floor((2 * a / us + b) * u + centre)
        inside = (proposal >= 0) & (proposal <= n)
        safe = jnp.clip(proposal, 0, n)
        ratio = jnp.log(v * alpha / (a / (us * us) + b))
        accepted = ((us >= 0.07) & (v <= tight)) | (ratio <= log_weight(safe) - at_mode)
        accepted = large & pending & inside & accepted
        k = jnp.where(accepted, proposal, k)
        return pending & ~accepted, (k, used)

    return _until_done(possible, step, (jnp.zeros_like(count), jnp.zeros_like(count)))[0]


@lowers("aten::binomial")
def binomial(count: Any, prob: Any, generator: Any = None, *, out: Any, rng: Stream) -> Any:
    """Successes of ``count`` trials of chance ``prob``, of the shape of both together."""
    n, p = jnp.broadcast_arrays(cast(count, "float32"), cast(prob, "float32"))
    above = p > 0.5
    k = _binomial(n, jnp.where(p < 1, jnp.where(above, 1 - p, p), jnp.zeros_like(p)), rng)
    k = jnp.where(above, n - k, k)
    return jnp.where(jnp.isnan(p) & (n > 0), p, jnp.where(n > 0, k, jnp.zeros_like(k)))


# --- gradients ---------------------------------------------------------------------------------


@lowers("aten::_standard_gamma_grad")
def standard_gamma_grad(self: Any, output: Any, *, out: Any) -> Any:
    """d sample / d alpha of gamma numbers ``output`` drawn with alpha ``self``."""
    dtype = op_math(out.dtype)
    alpha, x = jnp.broadcast_arrays(cast(self, dtype), cast(output, dtype))
    # Taylor series for small x. The powers of x cancel between the cdf and the pdf.
    first, second = 1 / alpha, 1 / (alpha * alpha)
    numerator = jnp.ones_like(x)
    for i in range(1, 6):
        numerator = numerator * (-x / i)
        first = first + numerator / (alpha + i)
        second = second + numerator / ((alpha + i) * (alpha + i))
    slope = (jnp.log(x) - lax.digamma(alpha)) * first - second
    taylor = -slope * x * jnp.exp(x)
    taylor = jnp.where(jnp.isnan(taylor), jnp.zeros_like(x), taylor)
    # Rice's saddle point for large alpha.
    numerator_1 = 1 + 24 * alpha * (1 + 12 * alpha)
    numerator_2 = (
        1440 * (alpha * alpha)
        + 6 * x * (53 - 120 * x)
        - 65 * x * x / alpha
        + alpha * (107 + 3600 * x)
    )
    near = numerator_1 * numerator_2 / (1244160 * (alpha * alpha) * (alpha * alpha))
    root = jnp.sqrt(8 * alpha)
    log_ratio = jnp.log(x / alpha)
    gap = alpha - x
    term3 = lax.pow(_deviance(alpha, x), jnp.full_like(x, -1.5))
    term23 = root / gap + jnp.where(x < alpha, -term3, term3)
    term1 = log_ratio * term23 - jnp.sqrt(2 / alpha) * (alpha + x) / (gap * gap)
    stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha))
    far = -stirling * x * term1 / root
    saddle = jnp.where((0.9 * alpha <= x) & (x <= 1.1 * alpha), near, far)
    # A rational function of two logarithms between them.
    u, v = log_ratio, jnp.log(alpha)
    c = [a + u * (b + u * d) for a, b, d in zip(*_GAMMA_GRADIENT, strict=True)]
    p = c[0] + v * (c[1] + v * (c[2] + v * c[3]))
    q = c[4] + v * (c[5] + v * (c[6] + v * c[7]))
    return jnp.where(x < 0.8, taylor, jnp.where(alpha > 8, saddle, jnp.exp(p / q)))


_GAMMA_GRADIENT = (
    (
        0.16009398, -0.094634809, 0.025146376, -0.0030648343,
        1.0, 0.32668115, 0.10406089, 0.0014179084,
    ),
    (
        0.53487893, 0.1298071, 0.065735949, -0.0015649758,
        0.16639465, 0.020070113, -0.0035938915, -0.00058392623,
    ),
    (
        0.040121004, -0.0065914022, -0.0026286047, -0.0013441777,
        0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07,
    ),
)  # fmt: skip


def _beta_alpha_small(x: Any, alpha: Any, beta: Any) -> Any:
    """Gradient of a beta number near 0 with respect to alpha, by Taylor series."""
    factor = lax.digamma(alpha) - lax.digamma(alpha + beta) - jnp.log(x)
    numerator = jnp.ones_like(x)
    series = (factor + 1 / alpha) / alpha
    for i in range(1, 11):
        numerator = numerator * ((i - beta) * x / i)
        below = alpha + i
        series = series + numerator / below * (factor + 1 / below)
    result = x * lax.pow(1 - x, -beta) * series
    return jnp.where(jnp.isnan(result), jnp.zeros_like(x), result)


def _beta_beta_small(x: Any, alpha: Any, beta: Any) -> Any:
    """Gradient of a beta number near 0 with respect to beta, by Taylor series."""
    factor = lax.digamma(alpha + beta) - lax.digamma(beta)
    numerator, betas, slopes = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for i in range(1, 9):
        numerator = numerator * (-x / i)
        slopes = slopes * (beta - i) + betas
        betas = betas * (beta - i)
        series = series + numerator / (alpha + i) * (slopes + factor * betas)
    result = -lax.pow(1 - x, 1 - beta) * series
    return jnp.where(jnp.isnan(result), jnp.zeros_like(x), result)


def _beta_alpha_middle(x: Any, alpha: Any, beta: Any) -> Any:
    """Gradient with respect to alpha where alpha and beta are large, by Rice's saddle point."""
    total = alpha + beta
    mean = alpha / total
    deviation = jnp.sqrt(alpha * beta / (total + 1)) / total
    square = beta * beta
    poly = 47 * x * square * square + alpha * (
        (43 + 20 * (16 + 27 * beta) * x) * square * beta
        + alpha
        * (
            3 * (59 + 180 * beta - 90 * x) * square
            + alpha
            * (
                (453 + 1620 * beta * (1 - x) - 455 * x) * beta
                + alpha * (8 * (1 - x) * (135 * beta - 11))
            )
        )
    )
    above = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    below = 12960 * alpha * alpha * alpha * square * (1 + 12 * total)
    near = above / (1 - x) * poly / below

    def stirling(y: Any) -> Any:
        return 1 + 1 / (12 * y) + 1 / (288 * y * y)

    prefactor = -x / jnp.sqrt(2 * alpha * beta / total)
    scale = stirling(alpha) * stirling(beta) / stirling(total)
    axbx = total * (x - mean)
    term1 = (2 * (alpha * alpha) * (x - 1) + alpha * beta * (x - 1) - x * square) / (
        jnp.sqrt(2 * alpha / beta) * total * jnp.sqrt(total) * axbx * axbx
    )
    term2 = 0.5 * jnp.log(alpha / (total * x))
    term3 = jnp.sqrt(8 * alpha * beta / total) / axbx
    # The two logarithms nearly cancel: their sum is a sum of deviances.
    base = _deviance(beta, total * (1 - x)) + _deviance(alpha, total * x)
    term4 = lax.pow(base, jnp.full_like(x, -1.5))
    far = scale * prefactor * (term1 + term2 * (term3 + jnp.where(x < mean, term4, -term4)))
    inside = (mean - 0.1 * deviation <= x) & (x <= mean + 0.1 * deviation)
    return jnp.where(inside, near, far)


@lowers("aten::_dirichlet_grad")
def dirichlet_grad(x: Any, alpha: Any, total: Any, *, out: Any) -> Any:
    """Scaled gradient of Dirichlet numbers ``x`` with respect to their concentrations."""
    dtype = op_math(out.dtype)
    x, alpha, total = jnp.broadcast_arrays(*(cast(a, dtype) for a in (x, alpha, total)))
    beta = total - alpha
    boundary = total * x * (1 - x)
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a
    p, q = jnp.zeros_like(x), jnp.zeros_like(x)
    for i in range(3):
        for j in range(3):
            power = u**i * a**j
            c, d = _DIRICHLET_GRADIENT[0][i][j], _DIRICHLET_GRADIENT[1][i][j]
            p = p + power * (c[0] + b * (c[1] + b * (c[2] + b * c[3])))
            q = q + power * (d[0] + b * (d[1] + b * (d[2] + b * d[3])))
    value = p / q * (x * (lax.digamma(total) - lax.digamma(alpha)) / beta)
    value = jnp.where((alpha > 6) & (beta > 6), _beta_alpha_middle(x, alpha, beta), value)
    at_one = (x >= 0.5) & (boundary < 0.75)
    value = jnp.where(at_one, -_beta_beta_small(1 - x, beta, alpha), value)
    at_zero = (x <= 0.5) & (boundary < 2.5)
    return jnp.where(at_zero, _beta_alpha_small(x, alpha, beta), value)


_DIRICHLET_GRADIENT = (
    (
        (
            (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
            (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
            (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
        ),
        (
            (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
            (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
            (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
        ),
        (
            (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
            (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
            (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
        ),
    ),
    (
        (
            (1.0, -0.02924021934, -0.04438342661, 0.007285809825),
            (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
            (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
        ),
        (
            (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
            (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
            (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
        ),
        (
            (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
            (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
            (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
        ),
    ),
)
