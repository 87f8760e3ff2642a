"""Inputs for a model by what its forward takes and its configuration says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

_TOKENS = 8


def candidates(model: Any, config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, keyword arguments), the most likely first; each is tried on the CPU."""
    takes = inspect.signature(model.forward).parameters
    make = torch.Generator().manual_seed(0)
    ids = _ids(config, make)
    pixels = _pixels(config, make)
    boxes = {"bbox": torch.zeros(1, _TOKENS, 4, dtype=torch.int64)} if "bbox" in takes else {}
    if "input_ids" in takes:
        text = {"input_ids": ids, **boxes}
        if "attention_mask" in takes:
            text["attention_mask"] = torch.ones_like(ids)
        if "decoder_input_ids" in takes:
            yield "ids+decoder", {**text, "decoder_input_ids": ids[:, :4]}
        if "pixel_values" in takes and pixels is not None:
            yield "ids+pixels", {**text, "pixel_values": pixels}
        yield "ids", text
        if "pixel_values_videos" in takes and pixels is not None:
            yield "ids+frames", {**text, "pixel_values_videos": _frames(config, pixels)}
    if "grid_thw" in takes:
        yield "patches", _patches(config, takes, make)
    if "pixel_values" in takes and pixels is not None:
        yield "pixels", {"pixel_values": pixels}
        for size in (128, 224):  # a stem that halves often, or a size that is fixed
            larger = torch.randn(*pixels.shape[:-2], size, size, generator=make)
            yield f"pixels {size}", {"pixel_values": larger}
        yield "pair of images", {"pixel_values": torch.stack([pixels, pixels], dim=1)}
    for key in ("pixel_values_videos", "pixel_values"):
        if key in takes and pixels is not None:
            yield "frames", {key: _frames(config, pixels)}
    if "past_values" in takes:
        length = int(_first(config, "context_length") or 32)
        series = int(_first(config, "num_input_channels", "input_size") or 1)
        yield "series", {"past_values": torch.randn(1, length, series, generator=make)}
    if "input_features" in takes:
        for shape in _features(config):
            yield f"features{list(shape)}", {"input_features": torch.randn(shape, generator=make)}
            decoder = {"decoder_input_ids": ids[:, :4]}
            if "decoder_input_ids" in takes:
                features = torch.randn(shape, generator=make)
                yield f"features{list(shape)}+decoder", {"input_features": features, **decoder}
    if "input_values" in takes:
        for shape in ((1, 4000), (1, 1, 4000)):
            yield f"values{list(shape)}", {"input_values": torch.randn(shape, generator=make)}
    if "hidden_states" in takes:
        width = getattr(config, "hidden_size", None)
        if isinstance(width, int):
            states = torch.randn(1, _TOKENS, width, generator=make)
            yield "hidden states", {"hidden_states": states}
    for key in ("past_values", "inputs_embeds", "x"):
        width = getattr(config, "hidden_size", None)
        if key in takes and isinstance(width, int):
            yield key, {key: torch.randn(1, _TOKENS, width, generator=make)}


def _frames(config: Any, pixels: torch.Tensor) -> torch.Tensor:
    """(1, frames, channels, height, width)."""
    return torch.stack([pixels] * int(_first(config, "frames_per_clip", "num_frames") or 4), dim=1)


def _patches(config: Any, takes: Any, make: torch.Generator) -> dict[str, Any]:
    """One image as (patches, values of a patch) with its grid, as vision towers of any size of
    image take it."""
    side = 4 * int(_first(config, "spatial_merge_size") or 1)
    channels = int(_first(config, "in_channels", "in_chans", "num_channels") or 3)
    patch = int(_first(config, "patch_size") or 14)
    values = channels * patch**2 * int(_first(config, "temporal_patch_size") or 1)
    name = next(iter(takes))
    inputs: dict[str, Any] = {name: torch.randn(side * side, values, generator=make)}
    inputs["grid_thw"] = torch.tensor([[1, side, side]])
    if "merge_sizes" in takes:
        inputs["merge_sizes"] = torch.tensor([int(_first(config, "spatial_merge_size") or 1)])
    return inputs


def _first(config: Any, *names: str) -> Any:
    """The first of these entries in the configuration or in one of its parts."""
    parts = [config]
    parts += [v for k, v in vars(config).items() if k.endswith("config") and v is not None]
    for part in parts:
        for name in names:
            value = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
            if value is not None:
                return value
    return None


def _ids(config: Any, make: torch.Generator) -> torch.Tensor:
    vocabulary = _first(config, "vocab_size")
    most = vocabulary if isinstance(vocabulary, int) and vocabulary > 16 else 64
    # The middle of the range: special ids lie at its ends.
    return torch.randint(most // 4, most // 2, (1, _TOKENS), generator=make)


def _pixels(config: Any, make: torch.Generator) -> torch.Tensor | None:
    size = _first(config, "image_size") or 64
    channels = _first(config, "num_channels", "in_channels") or 3
    if isinstance(size, (list, tuple)):
        height, width = (int(s) for s in size[-2:])
    elif isinstance(size, int):
        height = width = size
    else:
        return None
    return torch.randn(1, int(channels), height, width, generator=make)


def _features(config: Any) -> list[tuple[int, ...]]:
    mels = _first(config, "num_mel_bins", "input_feat_per_channel", "feature_size") or 80
    positions = _first(config, "max_source_positions") or 50
    return [(1, int(mels), 2 * int(positions)), (1, 32, int(mels)), (1, 32, 2 * int(mels))]
