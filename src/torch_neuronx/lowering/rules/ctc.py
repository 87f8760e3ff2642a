"""Connectionist temporal classification: the loss, its alpha table, and the gradient.

The recursions are those of Graves et al. (ICML 2006), in the log domain, one scan over time for
the whole batch. Labels are interleaved with blanks: state 2k + 1 is label k, even states are
blank. Lengths are static lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers

Ints = Sequence[int]


def _states(targets: Any, lengths: np.ndarray, longest: int, blank: int) -> Any:
    """Class of each state, int64 (batch, 2 * longest + 1); states past a length are blank."""
    batch = len(lengths)
    if longest == 0:
        return jnp.full((batch, 1), blank, np.int64)
    if targets.ndim == 1:  # one sequence after another
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        places = starts[:, None] + np.arange(longest)
        flat = targets if targets.size else jnp.zeros(1, targets.dtype)
        labels = jnp.take(flat, np.minimum(places, flat.shape[0] - 1))
    else:
        labels = targets[:, :longest]
    live = np.arange(longest) < lengths[:, None]
    labels = jnp.where(live, labels.astype(np.int64), blank)
    between = jnp.full((batch, longest), blank, np.int64)
    paired = jnp.stack([between, labels], axis=2).reshape(batch, 2 * longest)
    return jnp.concatenate([paired, between[:, :1]], axis=1)


def _log_sum(*terms: Any) -> Any:
    """log of the sum of exp; minus infinity where all are."""
    top = terms[0]
    for t in terms[1:]:
        top = jnp.maximum(top, t)
    base = jnp.where(jnp.isneginf(top), jnp.zeros((), top.dtype), top)
    total: Any = 0
    for t in terms:
        total = total + jnp.exp(t - base)
    return jnp.log(total) + base


def _shift(x: Any, by: int) -> Any:
    """States moved by ``by`` places along the last dimension, minus infinity coming in."""
    low = jnp.full((x.shape[0], min(abs(by), x.shape[1])), -np.inf, x.dtype)
    if by > 0:
        return jnp.concatenate([low, x[:, : x.shape[1] - by]], axis=1)[:, : x.shape[1]]
    return jnp.concatenate([x[:, -by:], low], axis=1)[:, : x.shape[1]]


class _Problem:
    """Emissions (time, batch, states) and where a state may be skipped."""

    def __init__(
        self, log_probs: Any, targets: Any, input_lengths: Ints, target_lengths: Ints, blank: int
    ) -> None:
        self.times = np.asarray(input_lengths, np.int64)
        self.labels = np.asarray(target_lengths, np.int64)
        longest = int(self.labels.max(initial=0))
        self.states = _states(targets, self.labels, longest, blank)
        time = log_probs.shape[0]
        index = jnp.broadcast_to(self.states, (time, *self.states.shape))
        self.emitted = jnp.take_along_axis(log_probs, index, axis=2, mode="clip")
        self.count = 2 * longest + 1
        place = np.arange(self.count)
        self.live = place < 2 * self.labels[:, None] + 1  # states of a sequence
        before = jnp.roll(self.states, 2, axis=1)
        odd = (place % 2 == 1) & (place > 2)
        self.from_two_before = (self.states != before) & odd
        after = jnp.roll(self.states, -2, axis=1)
        inner = (place % 2 == 1) & (place + 2 < self.count)
        self.to_two_after = (self.states != after) & inner & (place + 2 < 2 * self.labels[:, None])

    def _masked(self, x: Any, mask: Any) -> Any:
        return jnp.where(mask, x, jnp.asarray(-np.inf, x.dtype))

    def alpha(self) -> Any:
        """Log probability of all prefixes that end in a state, (time, batch, states)."""
        place = np.arange(self.count)
        start = self._masked(self.emitted[0], (place < 2) & self.live)

        def step(before: Any, emitted: Any) -> tuple[Any, Any]:
            skipped = self._masked(_shift(before, 2), self.from_two_before)
            now = _log_sum(before, _shift(before, 1), skipped) + emitted
            now = self._masked(now, self.live)
            return now, now

        rest = lax.scan(step, start, self.emitted[1:])[1]
        return jnp.concatenate([start[None], rest])

    def beta(self) -> Any:
        """Log probability of all suffixes that begin in a state, its own emission included."""
        place = np.arange(self.count)
        ends = (place >= 2 * self.labels[:, None] - 1) & self.live
        last = self.times - 1

        def step(after: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
            time, emitted = now
            skipped = self._masked(_shift(after, -2), self.to_two_after)
            total = _log_sum(after, _shift(after, -1), skipped) + emitted
            total = self._masked(total, self.live)
            first = self._masked(emitted, ends)
            total = jnp.where((time == last)[:, None], first, total)
            total = self._masked(total, (time <= last)[:, None])
            return total, total

        times = jnp.arange(self.emitted.shape[0], dtype=np.int64)
        empty = jnp.full(self.emitted.shape[1:], -np.inf, self.emitted.dtype)
        return lax.scan(step, empty, (times, self.emitted), reverse=True)[1]

    def loss(self, alpha: Any) -> Any:
        """Negative log likelihood of each sequence."""
        batch = np.arange(len(self.times))
        end = alpha[np.maximum(self.times - 1, 0), batch]  # (batch, states)
        final = end[batch, 2 * self.labels]
        label = end[batch, np.maximum(2 * self.labels - 1, 0)]
        label = self._masked(label, self.labels > 0)
        loss = -_log_sum(final, label)
        nothing = np.where(self.labels == 0, 0.0, np.inf)
        return jnp.where(self.times == 0, jnp.asarray(nothing, loss.dtype), loss)


@lowers("aten::_ctc_loss")
def _ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Ints,
    target_lengths: Ints,
    blank: int = 0,
    zero_infinity: bool = False,
    *,
    out: Any,
) -> tuple[Any, Any]:
    """Loss (batch,) and alpha (batch, time, states) of log_probs (time, batch, classes)."""
    x = cast(log_probs, op_math(out[0].dtype))
    problem = _Problem(x, targets, input_lengths, target_lengths, blank)
    if x.shape[0] == 0:
        nothing = np.where(problem.labels == 0, 0.0, np.inf)
        return jnp.asarray(nothing, x.dtype), jnp.zeros(out[1].shape, x.dtype)
    alpha = problem.alpha()
    return problem.loss(alpha), jnp.transpose(alpha, (1, 0, 2))


@lowers("aten::_ctc_loss_backward")
def _ctc_loss_backward(
    grad: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Ints,
    target_lengths: Ints,
    neg_log_likelihood: Any,
    log_alpha: Any,
    blank: int,
    zero_infinity: bool = False,
    *,
    out: Any,
) -> Any:
    """Gradient of log_probs, taken to be a log softmax: exp(log_probs) minus the posterior."""
    dtype = op_math(out.dtype)
    x, g, loss = (cast(a, dtype) for a in (log_probs, grad, neg_log_likelihood))
    if 0 in out.shape:
        return jnp.zeros(out.shape, x.dtype)
    problem = _Problem(x, targets, input_lengths, target_lengths, blank)
    alpha = jnp.transpose(cast(log_alpha, dtype), (1, 0, 2))[..., : problem.count]
    # alpha and beta both hold the emission: once too often.
    joint = alpha + problem.beta() - problem.emitted
    joint = jnp.where(problem.live, joint, jnp.asarray(-np.inf, joint.dtype))
    impossible = jnp.isinf(loss)
    posterior = jnp.exp(joint + jnp.where(impossible, jnp.zeros((), loss.dtype), loss)[:, None])
    posterior = jnp.where(jnp.isneginf(joint), jnp.zeros((), x.dtype), posterior)
    time, batch, _ = x.shape
    rows = np.arange(time)[:, None, None], np.arange(batch)[None, :, None]
    by_class = jnp.zeros(x.shape, x.dtype).at[(*rows, problem.states[None])].add(posterior)
    result = (jnp.exp(x) - by_class) * g[:, None]
    bad = jnp.asarray(0 if zero_infinity else np.nan, x.dtype)
    result = jnp.where(impossible[:, None], bad, result)
    inside = np.arange(time)[:, None] < problem.times
    return jnp.where(inside[..., None], result, jnp.zeros((), x.dtype))
