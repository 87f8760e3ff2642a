"""Overload objects, their schemas, and what each argument is."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a schema. ``kind`` is the schema's type, ``Optional`` taken off."""

    name: str
    kind: str
    keyword: bool
    written: bool
    aliases: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Schema:
    """An overload and its arguments; ``returns`` are alias sets, empty for fresh results."""

    op: Any
    arguments: tuple[Argument, ...]
    returns: tuple[frozenset[str], ...]


def overload(name: str) -> Any:
    """The OpOverload called ``aten::add.Tensor``."""
    namespace, rest = name.split("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")


def _aliases(x: Any) -> frozenset[str]:
    return frozenset(x.alias_info.before_set) if x.alias_info is not None else frozenset()


@functools.cache
def schema(name: str) -> Schema:
    """The schema of an overload."""
    op = overload(name)
    arguments = []
    for a in op._schema.arguments:
        kind = str(a.real_type)
        if kind.startswith("Optional["):
            kind = kind[len("Optional[") : -1]
        written = a.alias_info is not None and a.alias_info.is_write
        arguments.append(Argument(a.name, kind, a.kwarg_only, written, _aliases(a)))
    return Schema(op, tuple(arguments), tuple(_aliases(r) for r in op._schema.returns))


def call(op: Any, arguments: tuple[Argument, ...], values: list[Any]) -> Any:
    """Call an overload with values in the schema's order.

    PyTorch lets a number stand for a tensor in some overloads; in the others it becomes one here
    (``special.laguerre_polynomial_l(x, 3)`` reaches its tensor overload with a wrapped number).
    """
    if not torch._C._should_allow_numbers_as_tensors(op._schema.name.split("::")[1]):
        values = [
            torch.tensor(v, device="cpu")
            if a.kind == "Tensor" and isinstance(v, (int, float, complex))
            else v
            for a, v in zip(arguments, values, strict=True)
        ]
    positional = [v for a, v in zip(arguments, values, strict=True) if not a.keyword]
    keywords = {a.name: v for a, v in zip(arguments, values, strict=True) if a.keyword}
    return op(*positional, **keywords)


def tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among a call's values, lists looked into."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [t for v in values for t in tensors(v)] if isinstance(values, (list, tuple)) else []


def zeros_on_cpu(values: list[Any]) -> list[Any]:
    """``values`` with CPU zeros of the same strides for meta tensors; one object stays one."""
    made: dict[int, torch.Tensor] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            if id(value) not in made:
                zeros = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cpu"
                )
                zeros.untyped_storage().fill_(0)
                made[id(value)] = zeros
            return made[id(value)]
        return [replaced(v) for v in value] if isinstance(value, list) else value

    return [replaced(v) for v in values]
