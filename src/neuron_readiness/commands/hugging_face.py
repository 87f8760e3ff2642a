"""The text of a pilot for a class of transformers, from what its forward takes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from neuron_readiness.sweep import shrink

_TEMPLATE = Path(__file__).parent / "templates" / "hugging_face.py.txt"
# A model of random weights above this is reduced: a pilot should start within a minute.
_MOST_PARAMETERS = 400_000_000


def pilot_text(name: str, weights: str | None, file: str) -> str:
    """A pilot for the class ``name``, with its pretrained ``weights`` (a folder) or random ones.

    Raises:
        ValueError: transformers is missing, has no such model class, or the class takes inputs that
            this tool does not know.
    """
    cls, version = _class(name)
    config = cls.config_class()
    reduced = {} if weights else _reduced(cls)
    build = f"{name}.from_pretrained({weights!r})" if weights else _build(cls, reduced)
    takes = set(inspect.signature(cls.forward).parameters)
    sizes, unit, request = _request(takes, config, version, name)
    labels = _labels(name, takes)
    text = _TEMPLATE.read_text(encoding="utf-8")
    for mark, value in {
        "@NAME@": name,
        "@FILE@": file,
        "@IMPORTS@": name if weights else f"{cls.config_class.__name__}, {name}",
        "@SIMPLIFIED@": "" if weights else f"simplified = {_simplified(config, reduced)!r}\n",
        "@SIZES@": sizes,
        "@BUILD@": build,
        "@REQUEST@": "\n".join(f"    {line}" for line in request),
        "@UNIT@": unit,
        "@TRAIN@": _train(labels),
    }.items():
        text = text.replace(mark, value)
    return text.rstrip() + "\n"


def _class(name: str) -> tuple[Any, str]:
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"--hf needs transformers: {error}") from None
    cls = getattr(transformers, name, None)
    if getattr(cls, "config_class", None) is None or not hasattr(cls, "forward"):
        raise ValueError(
            f"transformers {transformers.__version__} has no model class {name!r}; expected one "
            "with a configuration of its own, such as BertForSequenceClassification"
        )
    return cls, str(transformers.__version__)


def _reduced(cls: Any) -> dict[str, Any]:
    """Entries of a smaller configuration, for a class whose default model is large."""
    import torch

    whole = cls.config_class()
    for divisor in (1, 2, 4, 8):
        entries = _changes(whole, divisor) if divisor > 1 else {}
        try:
            with torch.device("meta"):
                model = cls(cls.config_class(**entries))
        except Exception:  # a configuration that needs more than numbers: left as it is
            return {}
        if sum(p.numel() for p in model.parameters()) <= _MOST_PARAMETERS:
            return entries
    return entries


def _changes(config: Any, divisor: int) -> dict[str, Any]:
    """Numbers of a reduced configuration that differ from the whole one's."""
    before = config.to_dict()
    after = shrink.shrink(before, divisor)
    return {
        key: value
        for key, value in after.items()
        if type(value) is int and value != before[key] and not key.endswith("token_id")
    }


def _build(cls: Any, reduced: dict[str, Any]) -> str:
    entries = "".join(f"\n            {k}={v}," for k, v in reduced.items())
    config = f"{cls.config_class.__name__}({entries}{chr(10) + 8 * ' ' if entries else ''})"
    return f"{cls.__name__}(\n        {config}\n    )" if entries else f"{cls.__name__}({config})"


def _simplified(config: Any, reduced: dict[str, Any]) -> str:
    smaller = [f"{key} {value} of {getattr(config, key)}" for key, value in reduced.items()]
    return "random weights" + (f"; smaller: {', '.join(smaller)}" if smaller else "")


def _request(takes: set[str], config: Any, version: str, name: str) -> tuple[str, str, list[str]]:
    """The table of sizes, their unit, and the body of ``request``."""
    lines: list[str] = []
    keys: dict[str, str] = {}
    sizes = "sizes = {1: 0.8, 4: 0.2}  # items of a batch: share of the traffic\n"
    unit, batch = "items", "size"
    if "input_ids" in takes:
        sizes = "sizes = {16: 0.6, 32: 0.3, 64: 0.1}  # tokens: share of the traffic\n"
        unit, batch = "tokens", "1"
        lines.append("ids = torch.randint(5, 500, (1, size), generator=make)")
        keys["input_ids"] = "ids"
        if "attention_mask" in takes:
            keys["attention_mask"] = "torch.ones_like(ids)"
        if "bbox" in takes:
            keys["bbox"] = "torch.zeros(1, size, 4, dtype=torch.int64)"
    if "pixel_values" in takes:
        channels, height, width = _image(config)
        keys["pixel_values"] = (
            f"torch.randn({batch}, {channels}, {height}, {width}, generator=make)"
        )
    elif "input_features" in takes:
        bands = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", 80)
        frames = 2 * int(getattr(config, "max_source_positions", 0) or 50)
        shape = f"{batch}, {bands}, {frames}" if "whisper" in name.lower() else (
            f"{batch}, {frames}, {bands}"
        )  # fmt: skip
        keys["input_features"] = f"torch.randn({shape}, generator=make)"
    elif "input_values" in takes and "input_ids" not in takes:
        sizes, unit = "sizes = {1: 0.7, 2: 0.3}  # seconds: share of the traffic\n", "s"
        keys["input_values"] = "torch.randn(1, 16_000 * size, generator=make)"
    if not keys:
        raise ValueError(
            f"transformers {version}: the inputs of {name}.forward are not known to this tool "
            f"({', '.join(sorted(takes - {'self'}))[:200]}); start from `neuron-readiness init`"
        )
    if "decoder_input_ids" in takes:
        rows = "size" if batch == "size" else "1"
        keys["decoder_input_ids"] = f"torch.randint(5, 500, ({rows}, 8), generator=make)"
    lines.append("return {")
    lines += [f'    "{key}": {value},' for key, value in keys.items()]
    return sizes, unit, [*lines, "}"]


def _image(config: Any) -> tuple[int, int, int]:
    """Channels, height and width, of the configuration or of its part for images."""
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(getattr(part, "num_channels", 3) or 3), int(height), int(width)


def _labels(name: str, takes: set[str]) -> str | None:
    """What a batch has as labels, by the ending of the class's name."""
    if "labels" not in takes:
        return None
    if name.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM")):
        return 'batch["input_ids"]'
    if name.endswith(("ForSequenceClassification", "ForImageClassification")):
        return "torch.zeros(1, dtype=torch.int64)"
    if name.endswith("ForTokenClassification"):
        return 'torch.zeros_like(batch["input_ids"])'
    return None


def _train(labels: str | None) -> str:
    if labels is None:
        return (
            '    # "train": batches with what the loss needs; with a `loss` or a `train_step`, '
            "gradients\n    # are compared too."
        )
    return (
        '    if split == "train":  # gradients of the model\'s own loss are compared\n'
        "        batch = request(next(iter(sizes)), make)\n"
        f'        yield Case(name="a batch", kwargs={{**batch, "labels": {labels}}})'
    )
