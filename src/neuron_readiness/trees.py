"""Nested inputs and outputs: which tensors they hold, where, and how they move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """``value`` with ``function`` applied to every tensor; containers keep their type."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        items = {k: map_tensors(function, v) for k, v in value.items()}
        return items if type(value) is dict else _rebuilt(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, v) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, v) for v in value)
    return value


def _rebuilt(value: Any, items: dict[Any, Any]) -> Any:
    try:
        return type(value)(items)
    except TypeError:  # an output class with a constructor of its own
        return items


def move(value: Any, device: Any) -> Any:
    """``value`` with its tensors on ``device``."""
    return map_tensors(lambda t: t.to(device), value)


def named_tensors(value: Any, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in ``value`` with a path that reads like Python."""
    return _leaves(value, name, (torch.Tensor,))


def named_values(value: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """Every tensor, number and text in ``value`` with its path."""
    return _leaves(value, name, (torch.Tensor, bool, int, float, complex, str))


def _leaves(value: Any, name: str, kinds: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kinds):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}", kinds)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}[{index}]", kinds)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{name}.{field.name}", kinds)


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for _, t in named_tensors(value)]


def num_bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors(value))


def shape_text(value: Any) -> str:
    """``int64[2, 16] float32[3]``: the shape family of some inputs."""
    return " ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors(value))
