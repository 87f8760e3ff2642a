"""The causal language models of transformers, with a loss over labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuron_readiness.sweep.recipes import candidates
from neuron_readiness.sweep.sources import Built, CannotBuild, transformers

available = transformers.available


def names() -> list[tuple[str, str]]:
    """Every model type that has a causal language model; all are one family."""
    from transformers.models.auto import configuration_auto, modeling_auto

    known = set(configuration_auto.CONFIG_MAPPING_NAMES)
    mapped = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & known
    return [(name, "causal_lm") for name in sorted(mapped)]


def build(name: str) -> Built:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    config_class = CONFIG_MAPPING[name]
    found = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    model_class: Any = found[0] if isinstance(found, tuple) else found
    if not model_class.can_generate():
        raise CannotBuild(f"{model_class.__name__} has no head")
    return transformers.reduced_model(config_class, model_class, _labelled, {"is_decoder": True})


def _labelled(model: Any, config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What takes token ids, with the ids as labels, so that there is a loss."""
    for recipe, kwargs in candidates(model, config):
        if "input_ids" in kwargs:
            yield f"{recipe}+labels", {**kwargs, "labels": kwargs["input_ids"].clone()}
