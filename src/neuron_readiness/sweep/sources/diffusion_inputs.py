"""Inputs for a model of diffusers, guessed from what its forward takes.

A width that the configuration does not tell is given a number that nothing else has, so that the
error which names it ("mat1 and mat2 shapes cannot be multiplied (8x61 and 256x64)") says which
argument it belongs to, and what it should have been: see ``diffusion_corrections``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

Inputs = dict[str, Any]
TEXT = 8  # tokens of a condition
_SIDE = 4  # of an image that comes as tokens
MARKS = (61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151)
# Arguments that switch something else on, and what the library makes itself.
_USUAL = (
    *("timestep", "encoder_hidden_states", "hidden_states", "pooled_projections", "padding_mask"),
    *("img_ids", "txt_ids", "guidance", "text_encoder_layers", "image_meta_size", "style"),
)
_LAST_GIVEN = ("class_labels", "encoder_attention_mask")
_NOT_GIVEN = re.compile(
    r"attention_kwargs|return_dict|generator|sample_posterior|kv_cache|attention_mask$|rotary_emb|residual"
    r"|controlnet_.*samples|skip_layers|scale|guess_mode|from_multi|block_controlnet|_coords$|class_labels"
    r"|timestep_r$|attention_mask_1$"
)


def candidates(model: Any) -> Iterator[tuple[str, Inputs]]:
    """(name, keyword arguments) by the form of the first argument: an image or video, as latents or
    larger, audio, tokens. Each comes with what the forward requires and what models of this library
    usually need, then with all that is known."""
    takes = inspect.signature(model.forward).parameters
    if not takes:
        return
    first = next(iter(takes))
    for form, shape in _forms(model.config):
        for more, given in (("", _USUAL), (", all", None), (", all, labels", None)):
            make = torch.Generator().manual_seed(0)
            main = torch.randn(shape, generator=make)
            whole = "list" in str(takes[first].annotation)
            inputs: Inputs = {first: [main[0]] if whole else main}
            marks = iter(MARKS)
            for name, parameter in list(takes.items())[1:]:
                required = parameter.default is inspect.Parameter.empty
                wanted = name in given if given is not None else not _NOT_GIVEN.search(name)
                wanted = wanted or (name in _LAST_GIVEN and "labels" in more)
                if required or wanted:
                    value = _argument(name, parameter, main, model.config, marks, make)
                    if value is not None:
                        inputs[name] = value
            yield form + more, inputs


def _forms(config: Any) -> list[tuple[str, tuple[int, ...]]]:
    size = config.get("sample_size") or 16
    size = min(size if isinstance(size, int) else size[0], 32)
    names = ("in_channels", "input_channels", "in_visual_dim", "latent_channels", "audio_channels")
    channels = next((c for k in names if isinstance(c := config.get(k), int)), 3)
    return [
        ("image latents", (1, channels, size, size)),
        ("video latents", (1, channels, 5, size, size)),
        ("tokens", (1, _SIDE * _SIDE, channels)),
        ("audio latents", (1, channels, 64)),
        ("image", (1, channels, 64, 64)),
        ("video", (1, channels, 9, 64, 64)),
        ("sound", (1, channels, 7680)),
        ("frames", (1, 5, channels, size, size)),
        ("video, channels last", (1, 5, size, size, channels)),
        ("vector", (1, channels)),
    ]


def axis(form: str) -> int:
    """The dimension that is the channels of the first argument, by the name of its form."""
    if form.startswith(("tokens", "video, channels last")):
        return -1
    return 2 if form.startswith("frames") else 1


def _argument(
    name: str,
    parameter: inspect.Parameter,
    main: torch.Tensor,
    config: Any,
    marks: Iterator[int],
    make: torch.Generator,
) -> Any:
    """An argument by its name, None where nothing is known for it."""
    kind = str(parameter.annotation)
    value = _by_name(name, kind, main, config, marks, make)
    if kind.startswith("list[") and isinstance(value, torch.Tensor):
        return [value[0]]
    return value


def _by_name(
    name: str,
    kind: str,
    main: torch.Tensor,
    config: Any,
    marks: Iterator[int],
    make: torch.Generator,
) -> Any:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=make)

    tokens = main.shape[1] if main.dim() == 3 else _SIDE * _SIDE
    axes = len(config.get("axes_dims_rope") or config.get("axes_dim") or (0, 0, 0))
    if re.search(r"timestep_cond|time_cond", name):
        return None
    if re.search(r"timestep|^t$|sigma|_time$|time_ratio|noise_time", name):
        return torch.tensor([1.0])  # also where it is said to be an integer: it decides a dtype
    if name in ("img_ids", "txt_ids"):
        return torch.zeros(tokens if name == "img_ids" else TEXT, axes)
    if name == "img_shapes":
        return [[(1, _SIDE, _SIDE)]] if "list[list" in kind else [(1, _SIDE, _SIDE)]
    if name in ("original_size", "target_size", "crop_coords"):
        return torch.tensor([[64.0, 64.0]])
    if name in ("fps", "seconds"):
        return 8 if kind.startswith("int") else torch.tensor([8.0])
    if name in ("height", "width", "num_frames"):
        sizes = {"height": main.shape[-2:][0], "width": main.shape[-1], "num_frames": 1}
        return _SIDE if main.dim() == 3 and name != "num_frames" else sizes[name]
    if name == "guidance":
        return torch.ones(1) if config.get("guidance_embeds") else None
    if name == "scale":
        return 2
    if name == "class_labels":
        return torch.tensor([1])
    if name == "added_cond_kwargs":
        return {
            "resolution": torch.tensor([[64.0, 64.0]]),
            "aspect_ratio": torch.ones(1, 1),
            "text_embeds": random(1, _pooled(config) or 32),
            "time_ids": torch.ones(1, 6),
        }
    if name == "indices_latents":
        return torch.arange(main.shape[2]) if main.dim() > 4 else None
    if name == "added_time_ids":
        return torch.ones(1, 3)
    if name == "image_meta_size":
        return torch.full((1, 6), 64.0)
    if name == "style":
        return torch.zeros(1, dtype=torch.int64)
    if name == "text_encoder_layers":
        return [random(1, TEXT, config.get("text_encoder_dim") or next(marks)) for _ in range(4)]
    if name in ("visual_rope_pos",):
        return tuple(torch.arange(n) for n in (*main.shape[1:2], *main.shape[2:4]))
    if name in ("text_rope_pos",):
        return torch.arange(TEXT)
    if "mask" in name:
        if "padding_mask" in name and main.dim() >= 4:
            return torch.zeros(1, 1, *main.shape[-2:])
        if "condition_mask" in name:
            return torch.ones_like(main[:, :1])
        length = TEXT if re.search("encoder|text|source|target|lyric|cap", name) else tokens
        return torch.ones(1, length, dtype=torch.bool if "Bool" in kind else torch.int64)
    if "drop" in name:
        return torch.zeros(1, dtype=torch.bool)
    if name in ("indicator", "segment_ids"):
        return torch.zeros(1, tokens, dtype=torch.int64)
    if name == "position_ids":
        return torch.zeros(TEXT + tokens, 3, dtype=torch.int64)
    if "lens" in name:
        return torch.tensor([TEXT])
    if re.search(r"(token_id|input_ids|_ids|indices|indexes|tags|token_type)$", name):
        return torch.zeros(1, TEXT, dtype=torch.int64)
    if name in ("controlnet_cond", "control_hidden_states"):
        if main.dim() == 4 and "conditioning_channels" in config:
            return random(1, config["conditioning_channels"], *(8 * n for n in main.shape[-2:]))
        return random(*main.shape)
    if re.search(r"pooled|global|proj_embedding|^image_embeds$|clip_text_pooled", name):
        shape = (1,) if re.search("pooled|proj|global", name) else (1, TEXT)
        return random(*shape, _pooled(config) or next(marks))
    if name == "image_embeddings":
        return random(1, _width(config) or next(marks))
    if re.search(r"latents|pixel_values|^latent_cond$", name):
        return random(*main.shape)
    if re.search(r"hidden_states|embeds|embeddings|cap_feats|text_bth|tokens$|^z$", name):
        if name == "encoder_hidden_states":
            return random(1, TEXT, _width(config) or next(marks))
        return random(1, TEXT, next(marks))
    return None


def _pooled(config: Any) -> int | None:
    """Of one vector for a whole text, where the configuration tells it."""
    names = ("pooled_projection_dim", "clip_embedding_dim")
    return next((w for k in names if isinstance(w := config.get(k), int)), None)


def _width(config: Any) -> int | None:
    """Of a text's embedding, where the configuration tells it."""
    names = ("caption_channels", "cross_attention_dim", "joint_attention_dim", "text_dim")
    return next((w for k in names if isinstance(w := config.get(k), int)), None)
