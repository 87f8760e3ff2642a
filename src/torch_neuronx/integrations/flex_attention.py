"""``flex_attention`` on the device.

``torch.nn.attention.flex_attention.flex_attention`` refuses devices that it does not know. This
function has its signature and calls the same operators, so a model changes one import:

    from torch_neuronx.integrations.flex_attention import flex_attention

``create_block_mask`` and ``BlockMask`` are PyTorch's own (``device="neuron"``). The operator is
computed as masked dense attention: a block mask decides what is attended to, not how much is
computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.attention import flex_attention as upstream
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from torch_neuronx.integrations.tested import require

require("torch", "flex_attention")

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _identity(score: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return score


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Attention with a function on scores and a mask, as PyTorch's ``flex_attention``.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) of one floating dtype; result
    (B, Hq, L, Ev), and with ``return_lse`` the log-sum-exp (B, Hq, L), float32. Outside of
    torch.compile it compiles itself. ``kernel_options`` tune Triton kernels and are ignored.

    Stage: experimental.

    Raises:
        ValueError: shapes do not fit each other or the block mask.
    """
    _check(query, key, value, block_mask, enable_gqa, return_lse, return_aux)
    mask = upstream._create_empty_block_mask(query, key) if block_mask is None else block_mask
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    operator = flex_attention_operator if torch.compiler.is_compiling() else _compiled()
    out, lse, maximum = operator(
        query, key, value, score_mod or _identity, mask.as_tuple(), factor, {"BACKEND": "AUTO"}
    )
    # The operator's statistics are to base 2.
    if return_aux is not None:
        ln2 = math.log(2.0)
        return out, AuxOutput(
            lse=lse * ln2 if return_aux.lse else None,
            max_scores=maximum * ln2 if return_aux.max_scores else None,
        )
    return (out, lse * math.log(2.0)) if return_lse else out


_cache: list[Any] = []


def _compiled() -> Any:
    if not _cache:
        _cache.append(torch.compile(lambda *args: flex_attention_operator(*args), backend="neuron"))
    return _cache[0]


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockMask | None,
    enable_gqa: bool,
    return_lse: bool,
    return_aux: AuxRequest | None,
) -> None:
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError(
            "flex_attention: expected query, key and value of four dimensions, got "
            f"{query.dim()}, {key.dim()} and {value.dim()}"
        )
    hq, hkv = query.size(1), key.size(1)
    if hq != hkv and (not enable_gqa or hq % hkv != 0):
        raise ValueError(
            f"flex_attention: {hq} query heads do not fit {hkv} key and value heads. Pass "
            "enable_gqa=True, and make the one a multiple of the other."
        )
    if return_lse and return_aux is not None:
        raise ValueError("flex_attention: return_lse and return_aux exclude each other")
    if mask is not None and tuple(mask.shape[-2:]) != (query.size(2), key.size(2)):
        raise ValueError(
            f"flex_attention: the block mask is for lengths {tuple(mask.shape[-2:])}, got "
            f"{(query.size(2), key.size(2))}. Make one of that size."
        )
