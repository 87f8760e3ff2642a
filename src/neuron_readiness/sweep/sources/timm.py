"""The smallest model of each class of timm."""

from __future__ import annotations

import importlib.util
import inspect

from neuron_readiness.sweep.sources import Built, CannotBuild

_MOST_PARAMETERS = 60_000_000


def available() -> str | None:
    if importlib.util.find_spec("timm") is None:
        return "timm is not installed"
    from neuron_readiness.sweep.sources import torchvision_shim

    torchvision_shim.install()
    return None


def names() -> list[tuple[str, str]]:
    """The shortest name of each of timm's modules: as a rule its smallest model."""
    import timm

    found = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        if models:
            found.append((min(models, key=lambda n: (len(n), n)), module))
    return sorted(found)


def build(name: str) -> Built:
    import timm
    import torch

    with torch.device("meta"):
        count = sum(p.numel() for p in timm.create_model(name, pretrained=False).parameters())
    if count > _MOST_PARAMETERS:
        raise CannotBuild(f"{count} parameters")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    shape = (1, *model.default_cfg["input_size"])
    argument = next(iter(inspect.signature(model.forward).parameters))
    kwargs = {argument: torch.randn(shape, generator=torch.Generator().manual_seed(0))}
    return Built(model, kwargs, type(model).__name__, "pixels", "none", count)
