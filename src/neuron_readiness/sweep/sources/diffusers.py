"""Models of diffusers, built from their constructors' defaults with reduced widths."""

from __future__ import annotations

import inspect
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
        if inspect.isclass(cls) and issubclass(cls, diffusers.ModelMixin):
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
    last: Exception = CannotBuild("no candidate")
    for divisor in DIVISORS:
        try:
            entries = shrink(defaults, divisor)
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(**entries).parameters())
            if count > _MOST_PARAMETERS:
                raise CannotBuild(f"{count} parameters with widths divided by {divisor}")
            torch.manual_seed(0)
            model = cls(**entries).eval()
            kwargs = _inputs(model)
            with torch.no_grad():
                model(**kwargs)
        except Exception as error:
            last = error
            continue
        return Built(model, kwargs, name, "latents", f"1/{divisor}", count)
    raise CannotBuild(f"{type(last).__name__}: {str(last).strip()[:300]}") from last


def _inputs(model: Any) -> dict[str, Any]:
    import torch

    takes = inspect.signature(model.forward).parameters
    config = model.config
    size = config.get("sample_size") or 32
    size = size if isinstance(size, int) else size[0]
    channels = config.get("in_channels") or 3
    make = torch.Generator().manual_seed(0)
    kwargs: dict[str, Any] = {}
    first = next(iter(takes))
    kwargs[first] = torch.randn(1, channels, size, size, generator=make)
    if "timestep" in takes:
        kwargs["timestep"] = torch.tensor([1])
    if "encoder_hidden_states" in takes:
        width = config.get("cross_attention_dim") or config.get("joint_attention_dim")
        if isinstance(width, int):
            kwargs["encoder_hidden_states"] = torch.randn(1, 8, width, generator=make)
    return kwargs
