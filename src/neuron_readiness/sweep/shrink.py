"""Reduced configurations: small widths, few layers, every kind of layer once.

Works on a configuration as a dict, by the names of its entries, because there are 800 classes and
no table would stay true. The caller rebuilds through the class, whose own checks then run.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

DIVISORS = (16, 8, 4, 2, 1)
VOCABULARY = 512
_LAYERS = 2
_MOST_PIXELS = 256  # a side

_WIDTH = re.compile(
    r"hidden_size|hidden_dim|embed|(^|_)dim($|_)|dims$|d_model|d_ff|ffn|intermediate|inner|channels"
    r"|width|n_embd|lora_rank|d_kv|conv_dim|hidden_sizes|projection|mlp_size|state_size|upsample_groups|d_latents"
)
_NOT_WIDTH = re.compile(
    r"num_|n_head|heads|layers|position|vocab|patch|kernel|stride|num_channels|in_channels"
    r"|type|token|rope|scal|theta|ratio|dropout|prob|init|drop"
)
_DEPTH = re.compile(
    r"num_hidden_layers|num_layers|n_layers?$|encoder_layers$|decoder_layers$|^depth$|num_blocks"
    r"|num_(en|de)coder_layers|.*_num_hidden_layers|num_decoder_layers|entity_depth|n_layer"
)
_HEADS = re.compile(
    r"(.*_)?(num_(attention_|key_value_|kv_|query_|mamba_|ssm_)?heads|n(_mamba)?_heads?|n_kv_heads"
    r"|attention_heads|num_(key|value)_heads)"
)
_EXPERTS = re.compile(r"num_(local_)?experts$|n_routed_experts|moe_num_experts|num_expert$")
_TOP = re.compile(r"num_experts_per_tok|moe_k$|moe_topk|moe_top_k|top_k_experts|experts_per_token")
# Names of stages that follow from a depth: the class derives them again.
_DERIVED = ("stage_names", "out_features", "out_indices", "_out_features", "_out_indices")
_GROUPS = re.compile(r"^(n_group|topk_group|num_expert_group)$")
# What a configuration leaves at None and its model needs; widths as if divided already.
_MISSING: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_local_experts": 4,
    "num_experts": 4,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "clip_qkv": 8.0,
    "prediction_length": 16,
    "image_token_id": VOCABULARY - 1,
    "layerdrop": 0.0,
    "layer_types": ["full_attention"] * _LAYERS,
    "default_language": "en_XX",
    "shared_expert_intermediate_size": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_ABSENT = re.compile(r"'(\w+)' object has no attribute '(\w+)'")


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """A copy with a value for what is None in it or in one of its parts, and is needed."""
    whole = dict(config)
    for key, value in config.items():
        if isinstance(value, dict) and _is_part(key, value):
            whole[key] = filled(value)
        elif key == "rope_parameters" and value == {} and config.get("layer_types"):
            whole[key] = dict.fromkeys(config["layer_types"], _MISSING[key])
        elif value is None and key in _MISSING:
            whole[key] = _MISSING[key]
    return whole


def mend(config: Any, error: Exception) -> bool:
    """Gives a configuration object, or the part of it that ``error`` names, the entry that its
    class lacks and its model reads. False where no value is known for it."""
    found = _ABSENT.search(str(error)) if isinstance(error, AttributeError) else None
    if found is None or found[2] not in _MISSING:
        return False
    parts = [config, *(v for k, v in vars(config).items() if k.endswith("config"))]
    lacking = [p for p in parts if type(p).__name__ == found[1] and not hasattr(p, found[2])]
    for part in lacking:
        value = _MISSING[found[2]]
        if found[2] == "num_key_value_heads":  # each its own, where nothing is said
            value = getattr(part, "num_attention_heads", value)
        setattr(part, found[2], value)
    return bool(lacking)


def _is_part(key: str, value: dict[str, Any]) -> bool:
    """Whether an entry is the configuration of a part of the model."""
    return key.endswith("config") or "model_type" in value


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a configuration is reduced. ``divisor`` divides every width by one number, so that the
    ratios between widths stay what the architecture wants. Heads keep their number and become
    smaller; with ``fewer_heads`` they keep their size and become fewer, for an architecture with
    constants of that size. ``keep_depth`` leaves the layers, for one that picks some by number.
    ``fill`` gives values to what is None and needed."""

    divisor: int
    fewer_heads: bool = False
    keep_depth: bool = False
    fill: bool = False

    def __str__(self) -> str:
        words = {
            "fewer_heads": "fewer heads",
            "keep_depth": "all layers",
            "fill": "defaults filled",
        }
        more = [word for field, word in words.items() if getattr(self, field)]
        return ", ".join([f"1/{self.divisor}", *more])


def reduced(config: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A copy of a configuration as ``plan`` says."""
    small = shrink(config, plan.divisor, keep_depth=plan.keep_depth, fewer_heads=plan.fewer_heads)
    return filled(small) if plan.fill else small


def shrink(
    config: dict[str, Any], divisor: int, *, keep_depth: bool = False, fewer_heads: bool = False
) -> dict[str, Any]:
    """A reduced copy; see ``Plan``."""
    reduced = {
        key: _entry(key, value, divisor, keep_depth, fewer_heads)
        for key, value in config.items()
        if keep_depth or key not in _DERIVED
    }
    if not keep_depth:
        _layer_kinds(reduced)
    _coefficients(config, reduced, divisor, keep_depth)
    _images(reduced)
    _tokens(reduced)
    return reduced


def _entry(key: str, value: Any, divisor: int, keep_depth: bool, fewer_heads: bool) -> Any:
    if isinstance(value, dict):
        if value and all(str(k).isdigit() for k in value):  # by the number of the layer
            return {k: v for k, v in value.items() if keep_depth or int(k) < _LAYERS}
        if _is_part(key, value):
            return shrink(value, divisor, keep_depth=keep_depth, fewer_heads=fewer_heads)
        sections = value.get("mrope_section")
        if sections and not fewer_heads:
            return {**value, "mrope_section": _split(sections, divisor)}
        return value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if fewer_heads and key.endswith("head_dim"):
            return value
        if fewer_heads and _HEADS.fullmatch(key):
            return max(1, value // divisor)
        deep = keep_depth and _DEPTH.fullmatch(key)
        return value if deep else _number(key, value, divisor)
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        if key in ("depths", "layers", "num_blocks"):
            return list(value) if keep_depth else [min(v, 1) for v in value]
        if _WIDTH.search(key) and not _NOT_WIDTH.search(key):
            return [_divided(v, divisor) for v in value]
    return value


def _split(sections: list[int], divisor: int) -> list[int]:
    """Sections of a rotary embedding: with the same sum, divided, and none of them empty."""
    total = max(len(sections), sum(sections) // divisor)
    least = [max(1, n * total // sum(sections)) for n in sections]
    return [max(1, total - sum(least[1:])), *least[1:]]


def _number(key: str, value: int, divisor: int) -> int:
    if "vocab" in key:
        return min(value, VOCABULARY)
    if _EXPERTS.search(key):
        return min(value, 4)
    if _TOP.search(key):
        return min(value, 2)
    if _GROUPS.search(key):
        return min(value, 1)
    if _DEPTH.fullmatch(key):
        return min(value, _LAYERS)
    if key in ("num_queries", "num_latents"):
        return min(value, 8)
    if key in ("max_position_embeddings", "n_positions", "max_source_positions", "max_length"):
        return min(value, 512)
    if key == "max_text_length":  # of a decoder that makes all of its steps in one forward
        return min(value, 8)
    if key.endswith("intermediate_size") and value % divisor and value >= 32:
        return max(8, value // divisor // 8 * 8)  # bound to no other width
    if key.endswith("head_dim") or (_WIDTH.search(key) and not _NOT_WIDTH.search(key)):
        return _divided(value, divisor)
    return value


def _divided(value: int, divisor: int) -> int:
    return value // divisor if value >= 32 and value % divisor == 0 else value


def _layer_kinds(config: dict[str, Any]) -> None:
    """As many layers as it takes to meet each kind once, at least two."""
    name = next((k for k in ("layer_types", "layers_block_type") if config.get(k)), None)
    kinds = config.get(name) if name is not None else None
    if name is None or not isinstance(kinds, (list, tuple)):
        return
    kept = list(dict.fromkeys(kinds))
    while len(kept) < _LAYERS:
        kept.append(kept[-1])
    config[name] = kept
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if key in config:
            config[key] = len(kept)
    for key, value in config.items():  # further tables with an entry a layer
        same = isinstance(value, (list, tuple)) and len(value) == len(kinds)
        if same and key != name:
            config[key] = list(value)[: len(kept)]


def _coefficients(
    config: dict[str, Any], reduced: dict[str, Any], divisor: int, keep_depth: bool
) -> None:
    """An EfficientNet says widths and depths once for all sizes, and a factor for its own."""
    width, depth = config.get("width_coefficient"), config.get("depth_coefficient")
    if not isinstance(width, float) or not isinstance(depth, float):
        return
    tables = {k: v for k, v in config.items() if isinstance(v, (list, tuple))}
    reduced |= tables | {"width_coefficient": width / divisor}
    if not keep_depth:
        reduced["depth_coefficient"] = min(depth, 1.0)


def _images(config: dict[str, Any]) -> None:
    """Four patches a side; sixteen in windows of two where attention goes by windows, so that there
    is a window after three halvings. Without patches a side is what convolutions go over."""
    size, patch = config.get("image_size"), config.get("patch_size")
    window = config.get("window_size")
    if isinstance(window, int) and isinstance(size, int) and isinstance(patch, int):
        if size > 16 * patch > 0 and window > 2:
            config |= {"image_size": 16 * patch, "window_size": 2}
    elif isinstance(size, int) and isinstance(patch, int) and size > 4 * patch > 0:
        config["image_size"] = 4 * patch
    elif isinstance(size, int) and patch is None and window is None:
        config["image_size"] = min(size, _MOST_PIXELS)


def _tokens(config: dict[str, Any]) -> None:
    """Special ids below the vocabulary, each its own."""
    used = {v for k, v in config.items() if k.endswith("token_id") and isinstance(v, int)}
    free = (n for n in range(VOCABULARY - 1, 0, -1) if n not in used)
    for key, value in config.items():
        special = key.endswith(("token_id", "token_index"))
        if special and isinstance(value, int) and value >= VOCABULARY:
            config[key] = next(free)
