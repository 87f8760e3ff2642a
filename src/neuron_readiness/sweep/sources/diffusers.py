"""Models of diffusers, built from their constructors' defaults with reduced widths."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from neuron_readiness.sweep.shrink import DIVISORS, shrink
from neuron_readiness.sweep.sources import Built, CannotBuild
from neuron_readiness.sweep.sources.torchvision_shim import why_not

_MOST_PARAMETERS = 60_000_000


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
    first: Exception | None = None
    for divisor in DIVISORS:
        try:
            entries = _reduced(defaults, divisor)
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(**entries).parameters())
            if count > _MOST_PARAMETERS:
                raise CannotBuild(f"{count} parameters with widths divided by {divisor}")
            torch.manual_seed(0)
            model = cls(**entries).eval()
        except Exception as error:
            first = first or error
            continue
        for recipe, kwargs in _candidates(model):
            try:
                with torch.no_grad():
                    model(**kwargs)
            except Exception as error:
                first = first or error
                continue
            return Built(model, kwargs, name, recipe, f"1/{divisor}", count)
    first = first or CannotBuild("no reduction was tried")
    raise CannotBuild(f"{type(first).__name__}: {str(first).strip()[:300]}") from first


def _reduced(defaults: dict[str, Any], divisor: int) -> dict[str, Any]:
    """As for any configuration; and where a width is a count of heads times their size, which
    positions depend on, the count is what is reduced."""
    entries = shrink(defaults, divisor)
    for key in ("num_attention_heads", "num_single_layers", "num_refiner_layers"):
        if isinstance(entries.get(key), int):
            entries[key] = min(entries[key], 2)
    for key in ("attention_head_dim", "axes_dims_rope"):
        if key in defaults and "num_attention_heads" in defaults:
            entries[key] = defaults[key]
    for key in ("norm_num_groups", "num_groups"):
        if isinstance(entries.get(key), int):
            entries[key] = min(entries[key], 4)
    return entries


def _candidates(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Latents of an image, of a video, of audio, or as tokens, with what else the forward takes."""
    import torch

    takes = inspect.signature(model.forward).parameters
    config = model.config
    size = config.get("sample_size") or 16
    size = min(size if isinstance(size, int) else size[0], 32)
    channels = config.get("in_channels") or 3
    make = torch.Generator().manual_seed(0)
    more: dict[str, Any] = {}
    if "timestep" in takes:
        more["timestep"] = torch.tensor([1])
    width = next(
        (w for k in ("cross_attention_dim", "joint_attention_dim", "text_dim", "caption_channels")
         if isinstance(w := config.get(k), int)), None,
    )  # fmt: skip
    if "encoder_hidden_states" in takes and width is not None:
        more["encoder_hidden_states"] = torch.randn(1, 8, width, generator=make)
    pooled = config.get("pooled_projection_dim")
    if "pooled_projections" in takes and isinstance(pooled, int):
        more["pooled_projections"] = torch.randn(1, pooled, generator=make)
    if "img_ids" in takes and "txt_ids" in takes:
        more |= {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(8, 3)}
    if "guidance" in takes and config.get("guidance_embeds"):
        more["guidance"] = torch.ones(1)
    shapes = {
        "image latents": (1, channels, size, size),
        "video latents": (1, channels, 5, size, size),
        "tokens": (1, 16, channels),
        "audio latents": (1, channels, 64),
    }
    argument = next(iter(takes))
    for recipe, shape in shapes.items():
        yield recipe, {argument: torch.randn(shape, generator=make), **more}
