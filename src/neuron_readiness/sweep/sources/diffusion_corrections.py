"""Inputs corrected by what a model says of them, until it runs."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.sweep.sources.diffusion_inputs import MARKS

Inputs = dict[str, Any]
_MOST_RUNS = 16
_LAST = -1
_CHANNELS = 1

# What an error says: the size that came and the one that was expected, and of which dimension.
_SAID: list[tuple[re.Pattern[str], int]] = [
    (re.compile(r"cannot be multiplied \(\d+x(?P<got>\d+) and (?P<want>\d+)x"), _LAST),
    (re.compile(r"to have (?P<want>\d+) channels, but got (?P<got>\d+) channels"), _CHANNELS),
    (re.compile(r"expected (?P<want>\d+) \w+ channels, got (?P<got>\d+)"), _CHANNELS),
    (re.compile(r"shape \[\*,? ?(?P<want>\d+)\], but got.*size\s?\[[\d, ]*?(?P<got>\d+)\]"), _LAST),
    (re.compile(r"tensor a \((?P<got>\d+)\) must match.*tensor b \((?P<want>\d+)\)"), _LAST),
    (re.compile(r"tensor a \((?P<want>\d+)\) must match.*tensor b \((?P<got>\d+)\)"), _LAST),
]
_TOKENS_DIFFER = re.compile(r"tensor a \((\d+)\).*tensor b \((\d+)\) at non-singleton dimension 1$")
_WIDTHS_DIFFER = _SAID[0][0]
_BATCHED = re.compile(r"`(\w+)` must have shape \(B,")
_UNPACKED = re.compile(r"(?P<names>\w+(, \w+)+) = (?P<tensor>\w+)\.(shape|size\(\))$")


def runs(model: Any, inputs: Inputs, axis: int = _CHANNELS) -> Inputs:
    """``inputs``, corrected until the model runs on them. Where several arguments can be meant,
    each is tried.

    Args:
        axis: the dimension of the first argument that its channels are.

    Raises:
        Exception: what the model says of them when nothing more can be learnt from it.
    """
    waiting, first = [inputs], None
    seen = {_shapes(inputs)}
    for _ in range(_MOST_RUNS):
        tried = waiting.pop()
        try:
            with torch.no_grad():
                model(**copy.copy(tried))
            return tried
        except Exception as error:
            first = first or error
            corrected = [c for c in _corrected(model, tried, error, axis) if _shapes(c) not in seen]
            seen.update(map(_shapes, corrected))
            waiting += reversed(corrected)
            if not waiting:
                raise
    assert first is not None
    raise first


def _corrected(model: Any, inputs: Inputs, error: Exception, axis: int) -> Iterator[Inputs]:
    """Inputs with what ``error`` says of them, the likeliest first."""
    text = str(error).strip()
    yield from _without(model, inputs, text)
    batched = _BATCHED.search(text)
    if batched is not None and isinstance(inputs.get(batched[1]), torch.Tensor):
        yield {**inputs, batched[1]: inputs[batched[1]][None]}
    exact = list(_resized_ones(inputs, text))
    yield from exact
    tokens = _TOKENS_DIFFER.search(text)
    if tokens is not None:
        yield from _as_long(inputs, int(tokens[1]), int(tokens[2]))
    widths = _WIDTHS_DIFFER.search(text)
    if widths is not None and not exact:
        yield from _in_proportion(inputs, int(widths["got"]), int(widths["want"]), axis)
    if "to unpack" in text:
        yield from _unpacked(model, inputs, error)


def _shapes(inputs: Inputs) -> str:
    """What corrections change."""
    return repr(trees.map_tensors(lambda t: t.new_empty(t.shape, device="meta"), inputs))


def _without(model: Any, inputs: Inputs, text: str) -> Iterator[Inputs]:
    """Without an argument that was not required and that the error names."""
    takes = inspect.signature(model.forward).parameters
    for name in re.findall(r"`(\w+)`", text):
        if name in inputs and takes[name].default is not inspect.Parameter.empty:
            yield {k: v for k, v in inputs.items() if k != name}
            return


def _resized_ones(inputs: Inputs, text: str) -> Iterator[Inputs]:
    """With the size that the error names, of the one argument that has the wrong one."""
    for pattern, dimension in _SAID:
        said = pattern.search(text)
        if said is None:
            continue
        got, want = int(said["got"]), int(said["want"])
        bearers = [name for name, value in inputs.items() if _size(value, dimension) == got]
        if len(bearers) == 1 and got != want:
            name = bearers[0]
            yield {**inputs, name: _resized(inputs[name], dimension, want)}
            return


def _as_long(inputs: Inputs, one: int, other: int) -> Iterator[Inputs]:
    """With as many tokens, of an argument after the first."""
    for name, value in list(inputs.items())[1:]:
        if not isinstance(value, torch.Tensor) or value.dim() < 2:
            continue
        for got, want in ((one, other), (other, one)):
            if value.shape[1] == got:
                yield {**inputs, name: _repeated(value, 1, want)}


def _in_proportion(inputs: Inputs, got: int, want: int, axis: int) -> Iterator[Inputs]:
    """With other channels of the first argument, and of what is shaped like it: they were folded
    into ``got`` with their patch, and often joined with masks."""
    main = next(iter(inputs.values()))
    if not isinstance(main, torch.Tensor) or main.dim() < 4:
        return
    channels = round(main.shape[axis] * want / got)
    if 0 < channels != main.shape[axis] and got >= 8:
        alike = [n for n, v in inputs.items() if getattr(v, "shape", None) == main.shape]
        yield {**inputs, **{name: _resized(main, axis, channels) for name in alike}}


def _unpacked(model: Any, inputs: Inputs, error: Exception) -> Iterator[Inputs]:
    """With the dimensions that the failing line gives names to, of an argument after the first:
    sizes that the configuration tells, the first argument's frames, else what it had from the
    right."""
    lines = (frame.line or "" for frame in reversed(traceback.extract_tb(error.__traceback__)))
    said = next((m for m in (_UNPACKED.search(line) for line in lines) if m), None)
    name = said["tensor"] if said is not None else ""
    value, main = inputs.get(name), next(iter(inputs.values()))
    if said is None or value is main or not isinstance(value, torch.Tensor):
        return
    names = said["names"].split(", ")
    if len(names) <= value.dim():
        return
    rest, shape = list(value.shape[1:]), [1]
    for word in names[1:]:
        known = getattr(model, "config", {}).get(word)
        if isinstance(known, int):
            shape.append(known)
        elif "frames" in word and main.dim() == 5:
            shape.append(main.shape[1])
        elif rest:
            shape.append(rest.pop(0))
    if len(shape) == len(names) and not rest:
        yield {**inputs, name: torch.ones(shape, dtype=value.dtype) * value.flatten()[0]}


def _size(value: Any, dimension: int) -> int | None:
    """Of a floating tensor, or of each of a list; None for anything else."""
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        value, dimension = value[0], min(dimension, 0) if dimension < 0 else dimension - 1
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dim() < 2:
        return None
    if dimension == _LAST and value.dim() > 3 and value.shape[-1] not in MARKS:
        return None  # a side of an image is no width
    return value.shape[dimension]


def _resized(value: Any, dimension: int, size: int) -> Any:
    if isinstance(value, list):
        inner = dimension if dimension < 0 else dimension - 1
        return [_resized(v, inner, size) for v in value]
    shape = list(value.shape)
    shape[dimension] = size
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _repeated(value: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """``value``, again and again until it is as long."""
    index = torch.arange(size) % value.shape[dimension]
    return value.index_select(dimension, index)
