"""Bucketing: a few padded sizes instead of one executable a size (``options={"buckets": ...}``).

A spec names the sizes that a changing dimension is padded to. What may be padded is proven graph by
graph (``padding``); here are the specs, the choice of a bucket, and the calls: inputs grow to their
bucket, results are cut back to their true sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from torch_neuronx.dynamo.sizes import SYMBOLIC

POWERS = "powers_of_two"


@dataclasses.dataclass(frozen=True)
class Spec:
    """The sizes of one dimension: powers of two, multiples of a number, or a rising list.

    A size beyond the end of a list is left as it is.
    """

    multiple: int = 0
    sizes: tuple[int, ...] = ()

    @staticmethod
    def read(given: Any) -> Spec:
        """Raises ValueError for what is no spec."""
        if given == POWERS:
            return Spec()
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return Spec(multiple=given)
        if isinstance(given, (list, tuple)) and given and all(
            isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in given
        ):  # fmt: skip
            return Spec(sizes=tuple(sorted(set(given))))
        raise ValueError(
            f"options['buckets'] of torch.compile: expected '{POWERS}', a multiple such as 64, a "
            f"list of sizes, or a dict of those by dimension, got {given!r}"
        )

    def bucket(self, size: int) -> int:
        """The smallest size of the spec that holds ``size``."""
        if self.sizes:
            return next((n for n in self.sizes if n >= size), size)
        if self.multiple:
            return -(-size // self.multiple) * self.multiple
        return 1 << max(0, size - 1).bit_length()

    def __str__(self) -> str:
        if self.sizes:
            return str(list(self.sizes))
        return f"multiples of {self.multiple}" if self.multiple else "powers of two"


Specs = Mapping[int | None, Spec]  # by dimension of the graph's inputs; None: of any


def read(given: Any) -> Specs:
    """``options["buckets"]``, or nothing.

    Raises:
        ValueError: it has another form.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {None: Spec.read(given)}
    for dim in given:
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 0:
            raise ValueError(
                "options['buckets'] of torch.compile: expected dimensions from 0 on as keys, got "
                f"{dim!r}"
            )
    return {dim: Spec.read(spec) for dim, spec in given.items()}


def symbols(gm: GraphModule, specs: Specs) -> dict[sympy.Symbol, Spec]:
    """Which symbols of a Dynamo graph are padded: sizes of its inputs at the specs' dimensions."""
    found: dict[sympy.Symbol, Spec] = {}
    if not specs:
        return found
    for node in gm.graph.nodes:
        value = node.meta.get("example_value") if node.op == "placeholder" else None
        if not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            spec = specs.get(dim, specs.get(None))
            if spec and isinstance(size, SYMBOLIC) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, spec)
    return found


Factors = tuple[Any, ...]  # of a dimension, outermost first: an int or a sympy expression each
Layout = tuple[Factors, ...]


@dataclasses.dataclass(frozen=True)
class Argument:
    """A graph's input: how its dimensions are made of padded and other sizes (None: a number)."""

    layout: Layout | None
    expression: Any = None  # of a number
    apart: bool = False  # the call's tensor has a dimension for every factor
    strides: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """A graph's result: an input or its view, a number, a tensor to be cut, or what it is.

    ``strided``: sizes, strides and offset (from the input's) of the view.
    """

    argument: int | None = None
    strided: tuple[Any, Any, Any] | None = None
    expression: Any = None
    layout: Layout | None = None
    apart: bool = False


@dataclasses.dataclass(frozen=True)
class Padded:
    """A graph that holds for every size up to its bucket's.

    ``lengths`` are the true sizes that it takes as further inputs, as expressions. ``allowed`` says
    whether the graph, as it was traced, holds for given values of its symbols.
    """

    gm: GraphModule
    arguments: tuple[Argument, ...]
    lengths: tuple[Any, ...]
    results: tuple[Result, ...]
    specs: Mapping[sympy.Symbol, Spec]
    allowed: Callable[[Mapping[sympy.Symbol, Any]], bool]


class Bucketed:
    """Callable on a graph's inputs at their true sizes; ``function`` runs the padded graph."""

    def __init__(self, padded: Padded, function: Callable[..., list[Any]]) -> None:
        self._padded = padded
        self._function = function
        self._bucket = functools.lru_cache(maxsize=4096)(self._choose)

    def __call__(self, *inputs: Any) -> list[Any]:
        true = self._bind(inputs)
        wide = dict(self._bucket(tuple(true.items())))
        values = [
            self._grow(value, argument, true, wide)
            for value, argument in zip(inputs, self._padded.arguments, strict=True)
        ]
        lengths = [torch.tensor(_number(e, true)) for e in self._padded.lengths]
        results = self._function(*values, *lengths)
        return [
            self._cut(value, result, inputs, true, wide)
            for value, result in zip(results, self._padded.results, strict=True)
        ]

    def _bind(self, inputs: tuple[Any, ...]) -> dict[sympy.Symbol, Any]:
        true: dict[sympy.Symbol, Any] = {}
        for value, argument in zip(inputs, self._padded.arguments, strict=True):
            pairs: Any = [(argument.expression, value)]
            if argument.layout is not None:
                apart = argument.apart
                sizes = [f for d in argument.layout for f in (d if apart else [_product(d)])]
                pairs = [*zip(sizes, value.shape, strict=True)]
                pairs += zip(argument.strides, () if apart else value.stride(), strict=False)
            for expression, number in pairs:
                if isinstance(expression, sympy.Symbol):
                    true.setdefault(expression, sympy.sympify(number))
        return true

    def _choose(self, true: tuple[tuple[sympy.Symbol, Any], ...]) -> tuple[Any, ...]:
        """The symbols' values in the bucket; the true ones where the graph does not hold there."""
        wide = {
            s: sympy.Integer(self._padded.specs[s].bucket(int(v))) if s in self._padded.specs else v
            for s, v in true
        }
        return tuple(wide.items()) if self._padded.allowed(wide) else true

    def _grow(self, value: Any, argument: Argument, true: Any, wide: Any) -> Any:
        if argument.layout is None:
            return _number(argument.expression, wide) if argument.expression is not None else value
        if all(isinstance(f, int) for d in argument.layout for f in d):
            return value
        sizes = [[_number(f, wide) for f in d] for d in argument.layout]
        shape = [math.prod(d) for d in sizes]
        inner = [f for d in sizes for f in d] if argument.apart else shape
        if list(value.shape) == inner:
            return value.reshape(shape) if argument.apart else value
        return _widened(value, inner).reshape(shape)

    def _cut(
        self, value: Any, result: Result, inputs: tuple[Any, ...], true: Any, wide: Any
    ) -> Any:
        if result.argument is not None:
            source = inputs[result.argument]
            if result.strided is None:
                return source
            sizes, strides = ([_number(e, true) for e in part] for part in result.strided[:2])
            start = source.storage_offset() + _number(result.strided[2], true)
            return source.as_strided(sizes, strides, start)
        if result.expression is not None:
            return _number(result.expression, true)
        if result.layout is None:
            return value
        dim = 0
        whole = []
        for factors in result.layout:
            sizes = [_number(f, true) for f in factors]
            whole.append(math.prod(sizes))
            if len(factors) != 1:
                value = value.unflatten(dim, [_number(f, wide) for f in factors])
            for size in sizes:
                value = value.narrow(dim, 0, size) if value.shape[dim] != size else value
                dim += 1
        return value if result.apart else value.reshape(whole)


def _product(factors: Factors) -> Any:
    return functools.reduce(operator.mul, factors, sympy.Integer(1))


def _number(expression: Any, symbols: Mapping[sympy.Symbol, Any]) -> Any:
    if isinstance(expression, (bool, int, float)):
        return expression
    value = expression.xreplace(symbols)
    return int(value) if value.is_integer else float(value)


def _widened(value: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A tensor with these sizes that begins with ``value`` in every dimension.

    What follows is whatever there is: no padded graph reads it. Where a value was cut from a
    result of its bucket it is that result again; otherwise the host copies it, since a copy on the
    device would be compiled for each size, which is what buckets are there to save.
    """
    order = sorted(range(value.dim()), key=lambda d: value.stride(d), reverse=True)
    step, dense = 1, True
    for d in reversed(order):
        dense = dense and (sizes[d] == 1 or value.stride(d) == step)
        step *= sizes[d]
    start = value.storage_offset()
    room = value.untyped_storage().nbytes() // value.element_size() - start
    if dense and step <= room:
        return value.as_strided(sizes, value.stride(), start)
    wide = torch.zeros(sizes, dtype=value.dtype)
    wide[tuple(slice(n) for n in value.shape)] = value.cpu()
    return wide.to(value.device)
