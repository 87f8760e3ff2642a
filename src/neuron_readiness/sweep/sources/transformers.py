"""Architectures of Hugging Face transformers, from the names that its configurations have."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from neuron_readiness.sweep.recipes import candidates
from neuron_readiness.sweep.shrink import DIVISORS, filled, shrink
from neuron_readiness.sweep.sources import Built, CannotBuild
from neuron_readiness.sweep.sources.torchvision_shim import why_not

_MOST_PARAMETERS = 150_000_000
# The mappings that a class is looked for in, the bare model first.
_MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASK_GENERATION_MAPPING",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING",
)


def available() -> str | None:
    return why_not("transformers")


def names() -> list[tuple[str, str]]:
    """Every model type whose configuration has a model; the family is its main mapping's task."""
    from transformers.models.auto import configuration_auto, modeling_auto

    families: dict[str, str] = {}
    for mapping in dir(modeling_auto):
        if mapping.endswith("_MAPPING_NAMES") and mapping.startswith("MODEL_FOR_"):
            task = mapping.removeprefix("MODEL_FOR_").removesuffix("_MAPPING_NAMES").lower()
            for name in getattr(modeling_auto, mapping):
                families.setdefault(name, task)
    mapped = set(modeling_auto.MODEL_MAPPING_NAMES) | set(families)
    known = set(configuration_auto.CONFIG_MAPPING_NAMES)
    return sorted((name, families.get(name, "other")) for name in mapped & known)


def build(name: str) -> Built:
    import torch
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    model_class = _model_class(config_class)
    first: Exception | None = None  # the reduction that is tried first says most
    plans = [*itertools.product(DIVISORS, (False, True), (False,)), (DIVISORS[0], False, True)]
    for divisor, keep_depth, fill in plans:
        try:
            config = _config(config_class, divisor, keep_depth, fill)
            count = _parameters(model_class, config)
            if count > _MOST_PARAMETERS:
                raise CannotBuild(f"{count} parameters with widths divided by {divisor}")
            torch.manual_seed(0)
            model = model_class(config).float().eval()
        except Exception as error:  # another reduction may be what this architecture allows
            first = first or error
            continue
        for recipe, kwargs in candidates(model, config):
            try:
                with torch.no_grad():
                    model(**copy.deepcopy(kwargs))
            except Exception as error:
                first = first or error
                continue
            more = ", all layers" if keep_depth else ", defaults filled in" if fill else ""
            reduction = f"1/{divisor}{more}"
            return Built(model, kwargs, model_class.__name__, recipe, reduction, count)
    first = first or CannotBuild(f"no inputs are known for {model_class.__name__}")
    raise CannotBuild(f"{type(first).__name__}: {str(first).strip()[:300]}") from first


def _model_class(config_class: Any) -> Any:
    from transformers.models.auto import modeling_auto

    for mapping in _MAPPINGS:
        table = getattr(modeling_auto, mapping, None)
        if table is not None and config_class in table:
            found = table[config_class]
            return found[0] if isinstance(found, tuple) else found
    for mapping in sorted(dir(modeling_auto)):
        if mapping.startswith("MODEL_FOR_") and mapping.endswith("_MAPPING"):
            table = getattr(modeling_auto, mapping)
            if config_class in table:
                found = table[config_class]
                return found[0] if isinstance(found, tuple) else found
    raise CannotBuild(f"no model class takes {config_class.__name__}")


def _config(config_class: Any, divisor: int, keep_depth: bool, fill: bool) -> Any:
    entries = shrink(config_class().to_dict(), divisor, keep_depth=keep_depth)
    entries = filled(entries) if fill else entries
    for key in ("transformers_version", "model_type", "architectures"):
        entries.pop(key, None)
    return config_class(**entries)


def _parameters(model_class: Any, config: Any) -> int:
    """Counted on the meta device, where nothing is allocated."""
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
