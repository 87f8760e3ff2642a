"""Models of diffusers, built from their constructors' defaults with reduced widths."""

from __future__ import annotations

import inspect
import itertools
import re
import time
import traceback
from typing import Any

from neuron_readiness.sweep.shrink import DIVISORS, shrink
from neuron_readiness.sweep.sources import Built, CannotBuild
from neuron_readiness.sweep.sources.diffusion_corrections import runs
from neuron_readiness.sweep.sources.diffusion_inputs import TEXT, axis, candidates
from neuron_readiness.sweep.sources.torchvision_shim import why_not

_MOST_PARAMETERS = 60_000_000
_MOST_SECONDS = 30.0  # of processor time for trying; an architecture that runs is found in fewer
_GROUPS = 32  # of a group norm, as most models of images have


def available() -> str | None:
    return why_not("diffusers")


def names() -> list[tuple[str, str]]:
    import diffusers

    found = []
    for name in dir(diffusers):
        cls = getattr(diffusers, name, None)
        base = diffusers.ModelMixin
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base:
            found.append((name, cls.__module__.split(".")[-2]))
    return sorted(found)


def build(name: str) -> Built:
    import diffusers
    import torch

    cls = getattr(diffusers, name)
    defaults = {
        key: p.default
        for key, p in inspect.signature(cls.__init__).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    furthest = (0, "")
    started = time.process_time()
    ways = itertools.product(DIVISORS, (1, _GROUPS), (False, True))
    for divisor, multiple, fill in ways:
        try:
            entries = _reduced(defaults, divisor)
            if multiple > 1:
                grouped = _grouped(entries, defaults, multiple)
                if grouped == entries:
                    continue
                entries = grouped
            if fill:
                entries = _filled(entries, cls)
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(**entries).parameters())
            if count > _MOST_PARAMETERS:
                raise CannotBuild(f"{count} parameters with widths divided by {divisor}")
            torch.manual_seed(0)
            model = cls(**entries).eval()
        except Exception as error:
            furthest = max(furthest, _how_far(error))
            continue
        for recipe, guess in candidates(model):
            if time.process_time() - started > _MOST_SECONDS:
                raise CannotBuild(furthest[1])
            try:
                kwargs = runs(model, guess, axis(recipe))
            except Exception as error:
                furthest = max(furthest, _how_far(error))
                continue
            words = [f"1/{divisor}"]
            words += [f"multiples of {multiple}"] if multiple > 1 else []
            words += ["defaults filled"] if fill else []
            return Built(model, kwargs, name, recipe, ", ".join(words), count)
    raise CannotBuild(furthest[1])


def _how_far(error: Exception) -> tuple[int, str]:
    """How deep in the model it was raised, since the attempt that came furthest says most, and what
    it says. The error itself would keep the model and its inputs alive."""
    depth = len(traceback.extract_tb(error.__traceback__))
    return depth, f"{type(error).__name__}: {str(error).strip()[:300]}"


_KEPT = re.compile(r"pos_embed_max_size|num_embeds|axes_dims?|rope_axes_dim|axes_dims_rope")
_DEEP = re.compile(r"num_\w*(layers|blocks)(_per_block)?")
_WIDTH = re.compile(r"ch|\w*_channel")
_HEADS = ("num_attention_heads", "n_heads", "num_heads", "heads")
_AXES = re.compile(r"axes_dims?(_rope)?|rope_axes_dim|rope_dim_list")


def _reduced(defaults: dict[str, Any], divisor: int) -> dict[str, Any]:
    """As for any configuration; and where a width is a count of heads times their size, which
    positions depend on, the count is what is reduced, and what is as wide stays as wide."""
    entries = shrink(defaults, divisor)
    for key, value in defaults.items():
        if _KEPT.fullmatch(key):
            entries[key] = value
        elif type(value) is not int:
            continue
        elif key in _HEADS or _DEEP.fullmatch(key):
            entries[key] = min(value, 2)
        elif _WIDTH.fullmatch(key):
            entries[key] = max(value // divisor, min(value, 4))
        elif key in ("norm_num_groups", "num_groups", "groups"):
            entries[key] = min(value, 4)
        elif key in ("max_text_seq_length", "text_len", "text_len_t5"):
            entries[key] = TEXT
    heads = next((k for k in _HEADS if isinstance(defaults.get(k), int)), None)
    size = defaults.get("attention_head_dim")
    axes = next((v for k, v in defaults.items() if _AXES.fullmatch(k) and v), ())
    for key, value in defaults.items():
        if heads is not None and key.endswith("heads") and type(value) is int:
            entries[key] = min(value, entries[heads])
    if heads is not None and (isinstance(size, int) or axes):
        if isinstance(size, int):
            entries["attention_head_dim"] = size
        else:
            size = sum(axes)
        for key, value in defaults.items():
            if value == defaults[heads] * size:
                entries[key] = entries[heads] * size
        if "cross_attention_head_dim" in defaults:
            entries["cross_attention_head_dim"] = size
            entries["num_cross_attention_heads"] = entries[heads]
    return entries


def _grouped(entries: dict[str, Any], defaults: dict[str, Any], multiple: int) -> dict[str, Any]:
    """Widths that were multiples are multiples again, for groups that the model's code counts."""

    def whole(small: Any, value: Any) -> Any:
        if type(value) is int and small != value and value % multiple == 0:
            return min(value, -(-small // multiple) * multiple)
        if isinstance(value, (list, tuple)) and isinstance(small, (list, tuple)):
            return type(value)(map(whole, small, value))
        return small

    return {key: whole(small, defaults[key]) for key, small in entries.items()}


# What a constructor requires or leaves at None, and the model needs.
_NEEDED: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "latent_channels": 4,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "spatial_compression_ratio": 2,
    "sample_size": 16,
    "patch_size": 2,
    "patch_size_t": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "cross_attention_dim": 32,
    "cross_attention_dim_t5": 32,
    "caption_channels": (32, 32),
    "text_embed_dim": 32,
    "text_embed_dim_t5": 32,
    "hidden_size": 32,
    "time_position_encoding_type": "2d_rope",
    "text_encoder_dim": 32,
    "text_encoder_1_dim": 32,
    "langauge_model_dim": 32,
    "conditioning_dim": 32,
    "min_value": 0,
    "max_value": 10,
    "prefix_length": 4,
    "prefix_inner_dim": 32,
    "prefix_hidden_dim": 32,
    "num_embeds_ada_norm": 8,
}


def _filled(entries: dict[str, Any], cls: Any) -> dict[str, Any]:
    """``entries`` with what the constructor of ``cls`` requires or leaves at None, where known."""
    takes = inspect.signature(cls.__init__).parameters
    needed = {k: v for k, v in _NEEDED.items() if k in takes and entries.get(k) is None}
    whole = {**entries, **needed}
    heads, size = whole.get("num_attention_heads"), whole.get("attention_head_dim")
    if "hidden_size" in whole and isinstance(heads, int) and isinstance(size, int):
        whole["hidden_size"] = heads * size
    return whole
