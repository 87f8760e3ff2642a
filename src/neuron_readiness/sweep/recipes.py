"""Inputs for a model by what its forward takes and its configuration says."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Inputs = dict[str, Any]
_TOKENS = 8
_GIVEN = ("bbox", "noise")  # whether required or not: boxes go with ids, noise replaces a draw
_PATCHES = 4  # a side, of an image that comes as rows of patches


def candidates(model: Any, config: Any) -> Iterator[tuple[str, Inputs]]:
    """(name, keyword arguments), the most likely first; each is tried on the CPU. Each comes with
    what the forward requires, then with everything it takes that is known here."""
    takes = inspect.signature(model.forward).parameters
    make = torch.Generator().manual_seed(0)
    known = _Known(config, make)
    for name, inputs in (*_with_images(model, known, takes), *_bases(known, takes)):
        required = _completed(inputs, known, takes, only_required=True)
        yield name, required
        everything = _completed(required, known, takes, only_required=False)
        if everything.keys() != required.keys():
            yield f"{name}, all", everything


class _Known:
    """What a configuration says of inputs."""

    def __init__(self, config: Any, make: torch.Generator) -> None:
        self.config, self.make = config, make
        vocabulary = self.first("vocab_size")
        most = vocabulary if isinstance(vocabulary, int) and vocabulary > 16 else 64
        # The middle of the range: special ids lie at its ends.
        self.ids = torch.randint(most // 4, most // 2, (1, _TOKENS), generator=make)
        self.pixels = self._pixels()

    def first(self, *names: str) -> Any:
        """The first of these entries in the configuration or in one of its parts."""
        return next(
            (v for p in _parts(self.config) for n in names if (v := _get(p, n)) is not None), None
        )

    def number(self, default: int, *names: str) -> int:
        """The first of these entries as one number: of a list, its last."""
        value = self.first(*names)
        while isinstance(value, (list, tuple)):
            value = value[-1] if value else None
        return int(value) if isinstance(value, (int, float)) and value else default

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.make)

    def _pixels(self) -> torch.Tensor | None:
        size = self.first("image_size") or 64
        channels = self.number(3, "num_channels", "in_channels")
        if isinstance(size, (list, tuple)):
            height, width = (int(s) for s in size[-2:])
        elif isinstance(size, int):
            height = width = size
        else:
            return None
        return self.random(1, channels, height, width)

    def patch_values(self, frames: int = 1) -> int:
        """Values of a patch."""
        channels = self.number(3, "in_channels", "in_chans", "num_channels")
        patch = self.number(14, "patch_size")
        return channels * patch**2 * frames

    def grid(self, frames: int | None = None) -> Inputs:
        """One image of any size as (patches, values of a patch), with its grid."""
        side = _PATCHES * self.number(1, "spatial_merge_size")
        frames = frames or self.number(1, "temporal_patch_size")
        values = self.random(side * side, self.patch_values(frames))
        return {"pixel_values": values, "grid_thw": torch.tensor([[1, side, side]])}

    def features(self) -> list[tuple[int, ...]]:
        """Shapes of spectrograms."""
        mels = self.number(80, "num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels")
        positions = self.number(50, "max_source_positions", "n_ctx")
        return [
            (1, mels, 2 * positions),
            (1, 32, mels),
            (1, 32, 2 * mels),
            (1, 64, 4 * mels),
            (1, 1, 64, mels),
        ]


def _parts(config: Any) -> list[Any]:
    """A configuration and the parts in it, the outer ones first."""
    found, at = [config], 0
    while at < len(found):
        entries = found[at] if isinstance(found[at], Mapping) else vars(found[at])
        found += [v for k, v in entries.items() if k.endswith("config") and v is not None]
        at += 1
    return found


def _get(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _with_images(
    model: Any, known: _Known, takes: Mapping[str, Any]
) -> Iterator[tuple[str, Inputs]]:
    """Token ids with as many image tokens among them as an image has features."""
    token = known.first("image_token_id", "image_token_index")
    count_features = getattr(model, "get_image_features", None)
    if (
        not {"input_ids", "pixel_values"} <= takes.keys()
        or not isinstance(token, int)
        or not count_features
    ):
        return
    accepts = inspect.signature(count_features).parameters
    for name, image in _images(known):
        if not image.keys() - {"pixel_values"} <= takes.keys():
            continue
        image = _completed(image, known, takes, only_required=False, among=accepts)
        try:
            with torch.no_grad():
                found = count_features(**{k: v for k, v in image.items() if k in accepts})
        except Exception:  # another form of image may be what this model takes
            continue
        text = known.first("text_config") or known.config
        width = _get(text, "hidden_size")
        count = _rows(found, width)
        if not 0 < count <= 4096:
            continue
        ids = torch.cat([known.ids[:, :2], torch.full((1, count), token), known.ids[:, 2:]], 1)
        more = {"mm_token_type_ids": (ids == token).long()} if "mm_token_type_ids" in takes else {}
        if "token_type_ids" in takes:
            more["token_type_ids"] = (ids == token).long()
        yield (
            f"ids+{name}",
            {"input_ids": ids, "attention_mask": torch.ones_like(ids), **image, **more},
        )


def _images(known: _Known) -> Iterator[tuple[str, Inputs]]:
    grid = known.grid()
    yield "patches", {"pixel_values": grid["pixel_values"], "image_grid_thw": grid["grid_thw"]}
    if known.pixels is not None:
        yield "pixels", {"pixel_values": known.pixels}
        yield "one of several images", {"pixel_values": known.pixels[:, None]}


def _rows(found: Any, width: Any) -> int:
    """How many vectors of ``width`` the features of an image are."""
    found = getattr(found, "pooler_output", found)
    parts = found if isinstance(found, (list, tuple)) else [found]
    if (
        not parts
        or not all(isinstance(p, torch.Tensor) for p in parts)
        or not isinstance(width, int)
    ):
        return 0
    return sum(p.numel() for p in parts) // width


def _bases(known: _Known, takes: Mapping[str, Any]) -> Iterator[tuple[str, Inputs]]:
    ids, pixels = known.ids, known.pixels
    if "input_ids" in takes:
        text = {"input_ids": ids}
        if "attention_mask" in takes:
            text["attention_mask"] = torch.ones_like(ids)
        if "decoder_input_ids" in takes:
            yield "ids+decoder", {**text, "decoder_input_ids": ids[:, :4]}
        if "pixel_values" in takes and pixels is not None:
            yield "ids+pixels", {**text, "pixel_values": pixels}
        yield "ids", text
        if "pixel_values_videos" in takes and pixels is not None:
            yield "ids+frames", {**text, "pixel_values_videos": _frames(known, pixels)}
        for key, shapes in (
            ("input_features", known.features()),
            ("input_values", [(1, 1, 4000), (1, 4000)]),
        ):
            for shape in shapes if key in takes else ():
                yield f"ids+{key}{list(shape)}", {**text, key: known.random(*shape)}
        if "codes" in takes or "codebook_num" in vars(known.config):
            books = known.number(8, "num_codebooks", "n_codes_total")
            yield "codes", {"input_ids": ids[..., None].expand(1, _TOKENS, books)}
    yield from _vision(known, takes)
    yield from _series(known, takes)
    yield from _audio(known, takes)
    width = known.first("hidden_size", "d_model")
    for key in ("hidden_states", "inputs_embeds", "query_embeds", "inputs", "x"):
        if key in takes and isinstance(width, int):
            yield key.replace("_", " "), {key: known.random(1, _TOKENS, width)}
    latent = known.first("latent_channels", "latent_dim", "embed_dim", "hidden_size")
    if "latents" in takes and isinstance(latent, int):
        yield "latents", {"latents": known.random(1, latent, _TOKENS)}
    if {"states", "actions", "returns_to_go"} <= takes.keys():
        yield "trajectory", _trajectory(known)


def _vision(known: _Known, takes: Mapping[str, Any]) -> Iterator[tuple[str, Inputs]]:
    pixels = known.pixels
    grid_name = next((n for n in ("grid_thw", "image_grid_thw", "grid_thws") if n in takes), None)
    if grid_name is not None and "input_ids" not in takes:
        name = next(iter(takes))
        for frames in (None, 2):
            grid = known.grid(frames)
            values = grid["pixel_values"]
            yield "patches", {name: values, grid_name: grid["grid_thw"]}
        images = values.reshape(len(values), 2, -1)[:, 0]
        if pixels is not None and images.shape[1] % pixels.shape[1] == 0:
            edge = math.isqrt(images.shape[1] // pixels.shape[1])
            images = images.reshape(-1, pixels.shape[1], edge, edge)
            yield "patches as images", {name: images, grid_name: grid["grid_thw"]}
    if "pixel_values" in takes and pixels is not None:
        yield "pixels", {"pixel_values": pixels}
        for size in (128, 224, 256):  # a stem that halves often, or a size that is fixed
            larger = known.random(*pixels.shape[:-2], size, size)
            yield f"pixels {size}", {"pixel_values": larger}
        yield "pair of images", {"pixel_values": torch.stack([pixels, pixels], dim=1)}
        rows = known.random(1, _PATCHES**2, known.patch_values())
        yield "rows of patches", {"pixel_values": rows}
        text = {"input_ids": known.ids} if "input_ids" in takes else {}
        if text:
            yield "ids+rows of patches", {**text, "pixel_values": rows}
    for key in ("pixel_values_videos", "pixel_values"):
        if key in takes and pixels is not None:
            yield "frames", {key: _frames(known, pixels)}
    if "flattened_patches" in takes:
        width = known.number(known.patch_values(), "patch_embed_hidden_size")
        rows = torch.cat([torch.ones(1, 16, 2), known.random(1, 16, width)], -1)
        yield (
            "flattened patches",
            {"flattened_patches": rows, "decoder_input_ids": known.ids[:, :4]},
        )


def _series(known: _Known, takes: Mapping[str, Any]) -> Iterator[tuple[str, Inputs]]:
    if "past_values" not in takes:
        return
    length = known.number(32, "context_length")
    series = known.number(1, "num_input_channels", "input_size")
    yield "series", {"past_values": known.random(1, length, series)}
    yield "one series", {"past_values": known.random(1, length)}
    lags = known.first("lags_sequence")
    if "past_time_features" in takes and lags:
        ahead = known.number(4, "prediction_length")
        features = known.number(0, "num_time_features")
        past = length + max(lags)
        yield (
            "series with time",
            {
                "past_values": known.random(1, past),
                "past_time_features": known.random(1, past, features),
                "past_observed_mask": torch.ones(1, past),
                "future_values": known.random(1, ahead),
                "future_time_features": known.random(1, ahead, features),
            },
        )


def _audio(known: _Known, takes: Mapping[str, Any]) -> Iterator[tuple[str, Inputs]]:
    decoder = {"decoder_input_ids": known.ids[:, :4]} if "decoder_input_ids" in takes else {}
    if "input_features" in takes:
        for shape in known.features():
            yield f"features{list(shape)}", {"input_features": known.random(*shape)}
            if decoder:
                yield (
                    f"features{list(shape)}+decoder",
                    {"input_features": known.random(*shape), **decoder},
                )
    if "input_values" in takes:
        shapes: list[tuple[int, ...]] = [(1, 4000), (1, 1, 4000)]
        length, bins = known.first("max_length"), known.first("num_mel_bins")
        if isinstance(length, int) and isinstance(bins, int):
            shapes.append((1, length, bins))
        for shape in shapes:
            yield f"values{list(shape)}", {"input_values": known.random(*shape)}
            if decoder:
                yield (
                    f"values{list(shape)}+decoder",
                    {"input_values": known.random(*shape), **decoder},
                )
            if {
                "input_values_videos",
                "pixel_values_videos",
            } & takes.keys() and known.pixels is not None:
                frames = _frames(known, known.pixels)
                yield (
                    "values+frames",
                    {"input_values": known.random(*shape), "pixel_values_videos": frames},
                )


def _frames(known: _Known, pixels: torch.Tensor) -> torch.Tensor:
    """(1, frames, channels, height, width)."""
    return torch.stack([pixels] * known.number(4, "frames_per_clip", "num_frames"), dim=1)


def _trajectory(known: _Known) -> Inputs:
    """What a decision transformer takes."""
    steps = 4
    return {
        "states": known.random(1, steps, known.number(17, "state_dim")),
        "actions": known.random(1, steps, known.number(4, "act_dim")),
        "rewards": known.random(1, steps, 1),
        "returns_to_go": known.random(1, steps, 1),
        "timesteps": torch.arange(steps)[None],
        "attention_mask": torch.ones(1, steps),
    }


def _completed(
    inputs: Inputs,
    known: _Known,
    takes: Mapping[str, inspect.Parameter],
    *,
    only_required: bool,
    among: Mapping[str, Any] | None = None,
) -> Inputs:
    """``inputs`` with further arguments that go with them."""
    more = {}
    for name, parameter in takes.items():
        required = parameter.default is inspect.Parameter.empty
        if name in inputs or (only_required and not required and name not in _GIVEN):
            continue
        if among is not None and name not in among:
            continue
        value = _argument(name, inputs, known)
        if value is not None:
            more[name] = value
    return {**inputs, **more}


def _argument(name: str, inputs: Inputs, known: _Known) -> Any:
    """A further argument by its name, or None where it is not known or does not go with
    ``inputs``."""
    features = inputs.get("input_features", inputs.get("audio_features"))
    pixels = inputs.get("pixel_values")
    if features is not None and name in ("input_features_mask", "attention_mask", "audio_mel_mask"):
        return torch.ones(features.shape[0], max(features.shape[-2:]), dtype=torch.int64)
    if features is not None and name in ("feature_lens", "input_lengths"):
        return torch.tensor([max(features.shape[-2:])])
    if name == "merge_sizes":  # of the patches of each image
        return torch.ones(1, dtype=torch.int64)
    if name == "use_cache":
        return False
    if name == "input_values":
        return known.random(1, 1, 4000)
    if name == "padding_mask" and "input_values" in inputs:
        return torch.ones(1, inputs["input_values"].shape[-1], dtype=torch.int64)
    if name == "decoder_input_ids" and "input_ids" not in inputs:
        return known.ids[:, :4]
    if name in ("input_ids", "qformer_input_ids"):
        return known.ids
    if pixels is not None:
        return _about_pixels(name, pixels, known)
    if name == "pixel_values":
        return known.pixels
    if name in ("pixel_values_videos", "pixel_values_video") and known.pixels is not None:
        return _frames(known, known.pixels)
    return _about_ids(name, inputs, known)


def _about_pixels(name: str, pixels: torch.Tensor, known: _Known) -> Any:
    rows = pixels.shape[1] if pixels.dim() == 3 else 0
    side = torch.tensor([[_PATCHES, _PATCHES]])
    if rows:
        place = torch.arange(rows)
        by_name = {
            "pixel_attention_mask": torch.ones(1, rows, dtype=torch.int64),
            "spatial_shapes": side,
            "target_sizes": side,
            "tgt_sizes": side,
            "pixel_position_ids": torch.stack([place // _PATCHES, place % _PATCHES], -1)[None],
            "image_position_ids": torch.stack([place // _PATCHES, place % _PATCHES], -1)[None],
        }
        return by_name.get(name)
    height, width = pixels.shape[-2:]
    patch = known.first("patch_size")
    if name in ("spatial_shapes", "target_sizes", "tgt_sizes") and isinstance(patch, int):
        return torch.tensor([[height // patch, width // patch]])
    if name in ("pixel_mask", "pixel_attention_mask") and pixels.dim() >= 4:
        lead = pixels.shape[:1] if pixels.dim() == 4 else pixels.shape[:2]
        return torch.ones(*lead, height, width, dtype=torch.int64)
    if name == "image_sizes":
        return torch.tensor([[height, width]])
    if name == "noise" and isinstance(patch, int):  # orders the patches of a masked autoencoder
        return torch.rand(1, height // patch * (width // patch), generator=known.make)
    if name == "trimaps":
        return known.random(1, 1, height, width)
    if name in ("prompt_pixel_values", "prompt_masks"):
        return torch.randn(pixels.shape, generator=known.make)
    return _about_ids(name, {"pixel_values": pixels}, known)


def _about_ids(name: str, inputs: Inputs, known: _Known) -> Any:
    ids = inputs.get("input_ids", known.ids)
    if name == "bbox":
        return torch.zeros(*ids.shape[:2], 4, dtype=torch.int64)
    if name == "visual_feats":
        return known.random(1, 4, known.number(8, "visual_feat_dim"))
    if name == "visual_pos":
        return known.random(1, 4, 4)
    if name in ("query_embeds", "encoder_hidden_states", "image_embeds", "vision_hidden_states"):
        width = known.first("encoder_hidden_size", "hidden_size")
        return known.random(1, _TOKENS, width) if isinstance(width, int) else None
    return None
