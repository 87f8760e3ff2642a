"""Flash attention's own operators: batches of one length, and packed sequences of several.

Packed sequences are computed as one masked attention over all tokens: cost and memory grow with the
square of their total length.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.dtypes import cast, dtype_name
from torch_neuronx.lowering.errors import LoweringError
from torch_neuronx.lowering.rules.attention import _matmul, _share_heads, _sum_heads
from torch_neuronx.lowering.table import lowers


def _positions(cumulative: Any, total: int) -> tuple[Any, Any, Any]:
    """Sequence of each token, its place in it, and the length of its sequence."""
    token = jnp.arange(total)
    ends = cumulative.astype(np.int64)
    which = jnp.searchsorted(ends, token, side="right") - 1
    inside = jnp.clip(which, 0, ends.shape[0] - 2)
    start = ends[inside]
    return jnp.where(which >= ends.shape[0] - 1, -1, which), token - start, ends[inside + 1] - start


def _allowed(
    cum_q: Any,
    cum_k: Any,
    lengths: tuple[int, int],
    is_causal: bool,
    left: int | None,
    right: int | None,
    used: Any,
) -> Any:
    """(L, S): which query sees which key. Causality and windows count from the last of both."""
    if cum_q is None:
        seq_q = jnp.zeros(lengths[0], np.int64)
        place_q, length_q = jnp.arange(lengths[0]), jnp.full(lengths[0], lengths[0])
    else:
        seq_q, place_q, length_q = _positions(cum_q, lengths[0])
    if cum_k is None:
        seq_k = jnp.zeros(lengths[1], np.int64)
        place_k, length_k = jnp.arange(lengths[1]), jnp.full(lengths[1], lengths[1])
    else:
        seq_k, place_k, length_k = _positions(cum_k, lengths[1])
    allowed = (seq_q[:, None] == seq_k[None, :]) & (seq_q[:, None] >= 0)
    if used is not None:
        length_k = jnp.minimum(length_k, used.astype(np.int64)[jnp.maximum(seq_k, 0)])
        allowed &= place_k[None, :] < length_k[None, :]
    # Where the key lies relative to the query, both counted from their sequences' ends.
    ahead = (place_k - length_k)[None, :] - (place_q - length_q)[:, None]
    if is_causal:
        right = 0
    if right is not None and right >= 0:
        allowed &= ahead <= right
    if left is not None and left >= 0:
        allowed &= ahead >= -left
    return allowed


def _by_head(x: Any) -> Any:
    """(B, H, S, D) of (B, S, H, D), or of packed (S, H, D)."""
    return jnp.swapaxes(x[None] if x.ndim == 3 else x, 1, 2)


def _by_token(x: Any, like: Any) -> Any:
    x = jnp.swapaxes(x, 1, 2)
    return x[0] if like.ndim == 3 else x


def _factor(query: Any, scale: Any, dtype: str) -> Any:
    return cast(1 / math.sqrt(query.shape[-1]) if scale is None else scale, dtype)


def _refuse(dropout_p: Any, *others: tuple[str, Any]) -> None:
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0:
        raise LoweringError("_flash_attention: dropout_p: expected 0, which is all that is lowered")
    for name, value in others:
        if value is not None:
            raise LoweringError(f"_flash_attention: {name} is not lowered; pass None")


@lowers("aten::_flash_attention_forward", static=("dropout_p",))
def flash_attention_forward(
    query: Any,
    key: Any,
    value: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: Any = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Any = None,
    alibi_slopes: Any = None,
    block_table: Any = None,
    num_splits: int | None = None,
    *,
    out: tuple[ir.Array, ...],
) -> tuple[Any, ...]:
    """Output like query; logsumexp (B, H, L), or (H, L) of packed tokens; and what is unused.

    Tokens of (B, L, H, D), or packed (total, H, D) with ``cum_seq`` (sequences + 1).
    """
    _refuse(dropout_p, ("alibi_slopes", alibi_slopes), ("block_table", block_table))
    q, k, v = _by_head(query), _by_head(key), _by_head(value)
    k, v = _share_heads(k, q.shape[1]), _share_heads(v, q.shape[1])
    scores = _matmul(q, k, (3, 3))
    scores = scores * _factor(query, scale, dtype_name(scores))
    lengths = (q.shape[2], k.shape[2])
    allowed = _allowed(
        cum_seq_q, cum_seq_k, lengths, is_causal, window_size_left, window_size_right, seqused_k
    )
    scores = jnp.where(allowed, scores, jnp.array(-jnp.inf, scores.dtype))
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    safe = jnp.where(jnp.isneginf(top), 0, top)
    total = jnp.sum(jnp.exp(scores - safe), axis=-1)
    lse = jnp.log(total) + safe[..., 0]
    weights = jnp.exp(scores - jnp.where(jnp.isneginf(lse), 0, lse)[..., None])
    output = _by_token(_matmul(cast(weights, dtype_name(value)), v, (3, 2)), query)
    unused = [jnp.zeros(o.shape, o.dtype) for o in out[2:]]
    return output, lse[0] if query.ndim == 3 else lse, *unused


@lowers("aten::_flash_attention_backward", static=("dropout_p",))
def flash_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,
    unused: Any,
    scale: Any = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Any, Any, Any]:
    """Gradients of query, key and value."""
    _refuse(dropout_p)
    g, q, k, v, o = (_by_head(x) for x in (grad_out, query, key, value, out))
    heads, kv_heads = q.shape[1], k.shape[1]
    wide_k, wide_v = _share_heads(k, heads), _share_heads(v, heads)
    scores = _matmul(q, wide_k, (3, 3))
    dtype = dtype_name(scores)
    factor = _factor(query, scale, dtype)
    lengths = (q.shape[2], k.shape[2])
    allowed = _allowed(
        _packed(query, cum_seq_q), _packed(query, cum_seq_k), lengths, is_causal,
        window_size_left, window_size_right, None,
    )  # fmt: skip
    lse = cast(logsumexp[None] if query.ndim == 3 else logsumexp, dtype)[..., None]
    seen = allowed & ~jnp.isneginf(lse)
    weights = jnp.where(seen, jnp.exp(scores * factor - jnp.where(seen, lse, 0)), 0)
    low = dtype_name(query)
    grad_value = _matmul(cast(weights, low), g, (2, 2))
    row = jnp.sum(cast(g, dtype) * cast(o, dtype), axis=-1, keepdims=True)
    grad_scores = weights * (_matmul(g, wide_v, (3, 3)) - row)
    scaled = cast(grad_scores * factor, low)
    return (
        _by_token(_matmul(scaled, wide_k, (3, 2)), query),
        _by_token(_sum_heads(_matmul(scaled, q, (2, 2)), kv_heads), key),
        _by_token(_sum_heads(grad_value, kv_heads), value),
    )


def _packed(query: Any, cumulative: Any) -> Any:
    """``cum_seq`` of packed tokens; batches of one length come with an empty tensor or any."""
    return cumulative if query.ndim == 3 and cumulative.size else None
