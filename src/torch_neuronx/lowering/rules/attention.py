"""Scaled dot product attention, with gradients.

Scores and softmax are float32 for reduced floats; the products run on the inputs' dtype and
accumulate in float32. A row that sees no key gives zeros, as PyTorch's CPU kernel does. Fewer key
heads than query heads are shared by groups of neighbouring query heads.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering import handlers
from torch_neuronx.lowering.dtypes import cast, dtype_name
from torch_neuronx.lowering.layout import transposed
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.rules.matmul import product
from torch_neuronx.lowering.table import lowers

_HOST, _HOST_BACKWARD = "torchneuron.attention", "torchneuron.attention_backward"
# Scores of a head from which the host's kernel, which never writes them all, is quicker.
_MANY_SCORES = 512 * 512


def _host_takes(name: str, bias: Any, dropout: bool, query: Any, key: Any, value: Any) -> bool:
    """Whether the host's kernel may compute it: plain or causal, so that each row sees a key."""
    return (
        bias is None
        and not dropout
        and dtype_name(query) in ("float32", "bfloat16")
        and query.dtype == key.dtype == value.dtype
        and query.shape[3] == value.shape[3]
        and query.shape[2] * key.shape[2] >= _MANY_SCORES
        and handlers.takes(name, query, key, value)
    )


def _matmul(a: Any, b: Any, contract: tuple[int, int]) -> Any:
    """Batched product over (B, H); ``contract`` names the summed axis of each operand."""
    turn = (0, 1, 3, 2)
    a = a if contract[0] == 3 else transposed(a, turn)
    b = b if contract[1] == 2 else transposed(b, turn)
    return product(a, b, 2)


def _share_heads(x: Any, heads: int) -> Any:
    """(B, Hkv, S, D) with each head repeated for its group of query heads."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def _sum_heads(x: Any, heads: int) -> Any:
    """The transpose of ``_share_heads``."""
    if x.shape[1] == heads:
        return x
    return jnp.sum(x.reshape(x.shape[0], heads, -1, *x.shape[2:]), axis=2)


def _scale(query: Any, scale: Any, dtype: str) -> Any:
    return cast(1 / math.sqrt(query.shape[-1]) if scale is None else scale, dtype)


def _scores(query: Any, key: Any, bias: Any, is_causal: bool, scale: Any) -> Any:
    """(B, H, L, S): scaled products plus bias, -inf where a query does not look."""
    scores = _matmul(query, key, (3, 3))
    scores = scores * _scale(query, scale, dtype_name(scores))
    hidden = jnp.array(-jnp.inf, scores.dtype)
    if bias is not None:
        if dtype_name(bias) == "bool":
            scores = jnp.where(bias, scores, hidden)
        else:
            scores = scores + cast(bias, dtype_name(scores))
    if is_causal:
        shape = scores.shape[2:]
        row = lax.broadcasted_iota(np.int32, shape, 0)
        column = lax.broadcasted_iota(np.int32, shape, 1)
        scores = jnp.where(column <= row, scores, hidden)
    return scores


def _probabilities(scores: Any, logsumexp: Any) -> Any:
    lse = logsumexp[..., None]
    return jnp.where(jnp.isneginf(lse), jnp.zeros((), scores.dtype), jnp.exp(scores - lse))


def _keep(rng: Stream, shape: tuple[int, ...], dropout_p: Any) -> Any:
    """Dropout factors, 0 or 1 / (1 - p): one uniform draw a weight, kept below 1 - p."""
    p = cast(dropout_p, "float32")
    kept = rng.uniform(shape) < 1 - p
    return jnp.where(kept, 1 / (1 - p), jnp.zeros((), np.float32))


def _has_dropout(dropout_p: Any) -> bool:
    return bool(dropout_p > 0)


def _forward(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    dropout_p: Any,
    is_causal: bool,
    scale: Any,
    rng: Stream | None,
) -> tuple[Any, Any]:
    """Output (B, H, L, Dv) and logsumexp (B, H, L)."""
    heads = query.shape[1]
    key, value = _share_heads(key, heads), _share_heads(value, heads)
    dropout = rng is not None and _has_dropout(dropout_p)
    if _host_takes(_HOST, bias, dropout, query, key, value):
        results = [(query.shape, query.dtype), (query.shape[:3], np.float32)]
        scaled = _scale(query, scale, "float64")
        output, logsumexp = handlers.call(
            _HOST, results, query, key, value, scaled, causal=int(is_causal)
        )
        return output, logsumexp
    scores = _scores(query, key, bias, is_causal, scale)
    if scores.shape[-1] == 0:
        logsumexp = jnp.full(scores.shape[:-1], -jnp.inf, scores.dtype)
        return jnp.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype), logsumexp
    top = jnp.max(scores, axis=-1, keepdims=True)
    safe = jnp.where(jnp.isneginf(top), jnp.zeros((), scores.dtype), top)
    # Behind a barrier, or the exponentials are computed for the sum and again for the product.
    weights = lax.optimization_barrier(jnp.exp(scores - safe))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if dropout:
        weights = weights * cast(_keep(rng, weights.shape, dropout_p), dtype_name(weights))
    # Divided after the product, which is the smaller of the two arrays.
    output = _matmul(cast(weights, dtype_name(value)), value, (3, 2))
    output = output / jnp.where(total == 0, jnp.ones((), total.dtype), total)
    logsumexp = (jnp.log(total) + safe)[..., 0]
    return output, logsumexp


def _unbroadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """The sum of ``x`` over what broadcasting ``shape`` to it repeated."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    axes = tuple(a for a, n in enumerate(shape) if n == 1 and x.shape[a] != 1)
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


def _backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: Any,
    is_causal: bool,
    scale: Any,
    rng: Stream | None,
) -> tuple[Any, Any, Any, Any]:
    """Gradients of query, key, value and of the scores before reduction to the bias."""
    heads, kv_heads = query.shape[1], key.shape[1]
    wide_key, wide_value = _share_heads(key, heads), _share_heads(value, heads)
    dropout = rng is not None and _has_dropout(dropout_p)
    if _host_takes(_HOST_BACKWARD, bias, dropout, query, wide_key, wide_value):
        low = query.dtype
        operands = (
            grad_out.astype(low), query, wide_key, wide_value, out.astype(low),
            logsumexp.astype(np.float32), _scale(query, scale, "float64"),
        )  # fmt: skip
        results = [(x.shape, low) for x in (query, wide_key, wide_value)]
        grad_query, grad_key, grad_value = handlers.call(
            _HOST_BACKWARD, results, *operands, causal=int(is_causal)
        )
        grads = grad_query, _sum_heads(grad_key, kv_heads), _sum_heads(grad_value, kv_heads)
        return *grads, None
    scores = _scores(query, wide_key, bias, is_causal, scale)
    dtype = dtype_name(scores)
    weights = lax.optimization_barrier(_probabilities(scores, cast(logsumexp, dtype)))
    grad_weights = _matmul(grad_out, wide_value, (3, 3))
    used = weights
    if dropout:
        keep = cast(_keep(rng, weights.shape, dropout_p), dtype)
        used, grad_weights = weights * keep, grad_weights * keep
    low = dtype_name(query)
    grad_value = _matmul(cast(used, low), grad_out, (2, 2))
    row = jnp.sum(cast(grad_out, dtype) * cast(out, dtype), axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - row)
    scaled = cast(grad_scores * _scale(query, scale, dtype), low)
    grad_query = _matmul(scaled, wide_key, (3, 2))
    grad_key = _matmul(scaled, query, (2, 2))
    return (
        grad_query,
        _sum_heads(grad_key, kv_heads),
        _sum_heads(grad_value, kv_heads),
        grad_scores,
    )


def _batched(x: Any) -> Any:
    return x[None] if x.ndim == 3 else x


# The seed and offset of a draw travel to the backward pass as int64 tensors.


# The dropout probability is static: without dropout nothing is drawn.
@lowers("aten::_scaled_dot_product_fused_attention_overrideable", static=("dropout_p",))
def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: Any = None,
    *,
    rng: Stream,
) -> tuple[Any, ...]:
    """Attention of (B, H, L, D) queries, or (H, L, D).

    Gives the tensors among the schema's nine results: output, logsumexp (B, H, L), Philox seed and
    offset. max_q and max_k are the sequence lengths; the rest is undefined.
    """
    seed, offset = (lax.bitcast_convert_type(x, np.int64) for x in rng.state())
    q, k, v = _batched(query), _batched(key), _batched(value)
    output, logsumexp = _forward(q, k, v, attn_bias, dropout_p, is_causal, scale, rng)
    shape = (*query.shape[:-1], value.shape[-1])
    return output.reshape(shape), logsumexp, None, None, seed, offset, None


@lowers("aten::_scaled_dot_product_fused_attention_overrideable_backward", static=("dropout_p",))
def fused_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    grad_input_mask: tuple[bool, ...],
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: Any,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    scale: Any = None,
) -> tuple[Any, ...]:
    """Gradients of query, key, value and bias; None for the bias if there is none."""
    rng = None
    if philox_seed is not None:
        rng = Stream(
            lax.bitcast_convert_type(philox_seed, np.uint64),
            lax.bitcast_convert_type(philox_offset, np.uint64),
        )
    g, q, k, v, o = (_batched(x) for x in (grad_out, query, key, value, out))
    grads = _backward(g, q, k, v, attn_bias, o, logsumexp, dropout_p, is_causal, scale, rng)
    results = [a.reshape(b.shape) for a, b in zip(grads, (query, key, value), strict=False)]
    if attn_bias is None or not grad_input_mask[3]:
        return (*results, None)
    return (*results, _unbroadcast(grads[3], attn_bias.shape))


@lowers("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
) -> tuple[Any, Any]:
    """The operator graphs traced for CPU hold; it takes no dropout."""
    return _forward(query, key, value, attn_mask, 0.0, is_causal, scale, None)


@lowers("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: Any,
    is_causal: bool,
    attn_mask: Any = None,
    scale: Any = None,
) -> tuple[Any, Any, Any]:
    """Gradients of query, key and value."""
    return _backward(
        grad_out, query, key, value, attn_mask, out, logsumexp, 0.0, is_causal, scale, None
    )[:3]
