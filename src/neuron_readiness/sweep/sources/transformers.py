"""Architectures of Hugging Face transformers, from the names that its configurations have."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from neuron_readiness.sweep.recipes import candidates
from neuron_readiness.sweep.shrink import DIVISORS, Plan, mend, reduced
from neuron_readiness.sweep.sources import Built, CannotBuild
from neuron_readiness.sweep.sources.torchvision_shim import why_not

Inputs = Callable[[Any, Any], Iterator[tuple[str, dict[str, Any]]]]

_MOST_PARAMETERS = 150_000_000
_MOST_MENDS = 5
_PLANS = [
    *(Plan(DIVISORS[0], *p) for p in itertools.product((False, True), (False, True))),
    *(Plan(DIVISORS[0], fewer, fill=True) for fewer in (False, True)),
    *(Plan(*p) for p in itertools.product(DIVISORS[1:], (False, True), (False, True))),
]
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
    """Every model type; the family is its main mapping's task, or "component" for the parts of
    other models (towers, decoders, codecs), which no mapping has."""
    from transformers.models.auto import configuration_auto, modeling_auto

    families = dict.fromkeys(modeling_auto.MODEL_MAPPING_NAMES, "other")
    for mapping in dir(modeling_auto):
        if mapping.endswith("_MAPPING_NAMES") and mapping.startswith("MODEL_FOR_"):
            task = mapping.removeprefix("MODEL_FOR_").removesuffix("_MAPPING_NAMES").lower()
            for name in getattr(modeling_auto, mapping):
                if families.get(name, "other") == "other":
                    families[name] = task
    known = configuration_auto.CONFIG_MAPPING_NAMES
    return sorted((name, families.get(name, "component")) for name in known)


def build(name: str) -> Built:
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    return reduced_model(config_class, _model_class(config_class), candidates)


def reduced_model(
    config_class: Any, model_class: Any, inputs: Inputs, given: dict[str, Any] | None = None
) -> Built:
    """The first reduction of the default configuration that ``model_class`` can be built from and
    that runs on one of the ``inputs`` of model and configuration. ``given``: entries that are set
    where the configuration has them. A class that takes another configuration than
    ``config_class``, that of a part, gets its own.

    Raises:
        CannotBuild: none does; with the error of the first reduction, which says most.
    """
    import torch

    config_class = _takes(model_class) or config_class
    first: Exception | None = None
    for plan in _PLANS:
        try:
            config, count, mended = _configured(config_class, model_class, plan, given or {})
            torch.manual_seed(0)
            model = model_class(config).float().eval()
        except Exception as error:  # another reduction may be what this architecture allows
            first = first or error
            continue
        for recipe, kwargs in inputs(model, config):
            try:
                with torch.no_grad():
                    model(**copy.deepcopy(kwargs))
            except Exception as error:
                first = first or error
                continue
            reduction = f"{plan}, absent entries given" if mended else str(plan)
            return Built(model, kwargs, model_class.__name__, recipe, reduction, count)
        first = first or CannotBuild(f"no inputs are known for {model_class.__name__}")
    raise CannotBuild(f"{type(first).__name__}: {str(first).strip()[:300]}") from first


def _model_class(config_class: Any) -> Any:
    """The class that the mappings have for a configuration: the first that says it takes it, since
    some map a whole model's configuration to a part of it."""
    from transformers.models.auto import modeling_auto

    others = sorted(m for m in dir(modeling_auto) if re.fullmatch("MODEL_FOR_.*_MAPPING", m))
    mapped = []
    for mapping in dict.fromkeys([*_MAPPINGS, *others]):
        table = getattr(modeling_auto, mapping, None)
        if table is not None and config_class in table:
            found = table[config_class]
            mapped.append(found[0] if isinstance(found, tuple) else found)
    if not mapped:
        return _component_class(config_class)
    return next((cls for cls in mapped if _takes(cls) is config_class), mapped[0])


def _component_class(config_class: Any) -> Any:
    """The model of a part that no mapping has: the class of its module that takes the
    configuration, a bare model before one with a head."""
    from transformers import PreTrainedModel

    module = config_class.__module__.replace(".configuration_", ".modeling_")
    members: dict[str, Any] = vars(importlib.import_module(module))
    found: list[Any] = [
        cls
        for cls in members.values()
        if inspect.isclass(cls)
        and issubclass(cls, PreTrainedModel)
        and _takes(cls) is config_class
        and getattr(cls, "forward", None) is not PreTrainedModel.forward
        and not cls.__name__.endswith("PreTrainedModel")
    ]
    if not found:
        raise CannotBuild(f"no model class takes {config_class.__name__}")
    return min(found, key=lambda cls: ("For" in cls.__name__, not cls.__name__.endswith("Model")))


def _takes(model_class: Any) -> Any:
    """The configuration class of a model: its own, or what its constructor says."""
    annotated = inspect.signature(model_class.__init__).parameters.get("config")
    if annotated is not None and inspect.isclass(annotated.annotation):
        return annotated.annotation
    if annotated is not None and isinstance(annotated.annotation, str):
        module = inspect.getmodule(model_class)
        return getattr(module, annotated.annotation, model_class.config_class)
    return model_class.config_class


def _config(config_class: Any, plan: Plan, given: dict[str, Any]) -> Any:
    entries = reduced(config_class().to_dict(), plan)
    entries |= {key: value for key, value in given.items() if key in entries}
    for key in ("transformers_version", "model_type", "architectures"):
        entries.pop(key, None)
    return config_class(**entries)


def _configured(
    config_class: Any, model_class: Any, plan: Plan, given: dict[str, Any]
) -> tuple[Any, int, bool]:
    """A reduced configuration, the parameters of its model, and whether it lacked entries.

    Raises:
        CannotBuild: the model has too many parameters.
    """
    config = _config(config_class, plan, given)
    mended = False
    for _ in range(_MOST_MENDS):
        try:
            count = _parameters(model_class, config)
            break
        except AttributeError as error:
            if not mend(config, error):
                raise
            mended = True
    else:
        raise CannotBuild(f"{config_class.__name__} lacks more than {_MOST_MENDS} entries")
    if count > _MOST_PARAMETERS:
        raise CannotBuild(f"{count} parameters with widths divided by {plan.divisor}")
    return config, count, mended


def _parameters(model_class: Any, config: Any) -> int:
    """Counted on the meta device, where nothing is allocated."""
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
