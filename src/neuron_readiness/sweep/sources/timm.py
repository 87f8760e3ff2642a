"""The smallest model of each class of timm."""

from __future__ import annotations

import inspect
from typing import Any

from neuron_readiness.sweep.sources import Built, CannotBuild
from neuron_readiness.sweep.sources.torchvision_shim import why_not

_SIZES = (
    *("_test_", "_atto_", "_femto_", "_pico_", "_nano_", "_xxt_", "_xx_small_", "_xs_", "_tiny_"),
    *("_mini_", "_b0_", "_x0_25_", "_t0_", "_s0_", "_s_", "_small_", "_s12_", "_18_", "_b1_"),
    *("_m_", "_medium_", "_base_", "_b_", "_large_", "_l_", "_huge_"),
)
_MOST_PARAMETERS = 60_000_000
_FEWER: tuple[dict[str, Any], ...] = ({"depth": 2}, {"layers": (1, 1, 1, 1)})


def available() -> str | None:
    return why_not("timm")


def names() -> list[tuple[str, str]]:
    """A small model of each of timm's modules, by the words for size in its names: building all of
    them to count takes minutes."""
    import timm

    found = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        if models:
            found.append((min(models, key=_size), module))
    return sorted(found)


def _size(name: str) -> tuple[int, int, str]:
    """Sorts small models first; a name without a word for size comes in the middle."""
    rank = next((i for i, word in enumerate(_SIZES) if word in f"_{name}_"), _SIZES.index("_m_"))
    return rank, len(name), name


def build(name: str) -> Built:
    import timm
    import torch

    fewer, count = _reduction(name)
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **fewer).eval()
    shape = (1, *model.default_cfg["input_size"])
    argument = next(iter(inspect.signature(model.forward).parameters))
    kwargs = {argument: torch.randn(shape, generator=torch.Generator().manual_seed(0))}
    words = ", ".join(f"{key}={value}" for key, value in fewer.items()) or "none"
    return Built(model, kwargs, type(model).__name__, "pixels", words, count)


def _reduction(name: str) -> tuple[dict[str, Any], int]:
    """What makes a model small enough, and its parameters: nothing, or the fewer layers that its
    class takes by one of the words for them.

    Raises:
        CannotBuild: it is too large with each of them.
    """
    import timm
    import torch

    whole = 0
    for fewer in ({}, *_FEWER):
        try:
            with torch.device("meta"):
                model = timm.create_model(name, pretrained=False, **fewer)
        except TypeError:  # not this class's word
            if not fewer:
                raise
            continue
        count = sum(p.numel() for p in model.parameters())
        whole = whole or count
        if count <= _MOST_PARAMETERS:
            return fewer, count
    raise CannotBuild(f"{whole} parameters")
