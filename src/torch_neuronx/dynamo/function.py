"""A compiled graph: one executable a concrete signature, planned at the first call with it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import warnings
import weakref
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.compiler import planning
from torch_neuronx.dynamo import graph as fx
from torch_neuronx.dynamo import obstacles
from torch_neuronx.dynamo.split import Split, split

_serial = itertools.count()


class CompiledFunction:
    """Callable on the graph's inputs; gives the list of its outputs.

    A graph with an obstacle (``obstacles.find``: an operator without a rule, or work on the CPU)
    is run operator by operator instead, where the fallback policy applies (decision D8); a warning
    says so, with the Python line. What the graph computes on the CPU runs there first, by PyTorch's
    own kernels. CPU tensors that the device reads, inputs among them, are copied to it at each
    call; 0-d ones are passed as numbers. (Mixing dimensioned CPU and neuron tensors in one operator
    is an error, which Dynamo raises.)
    """

    def __init__(self, gm: torch.fx.GraphModule, name: str) -> None:
        self.name = f"{name}_{next(_serial)}"
        self._gm = gm
        self._obstacle = obstacles.find(gm)
        if self._obstacle:
            warnings.warn(
                f"torch.compile(backend='neuron'): {self.name} runs operator by operator, because "
                f"{self._obstacle}",
                UserWarning,
                stacklevel=2,
            )
            return
        self._device = obstacles.devices(gm)[0]
        self._split = split(gm)
        self._gm = self._split.device
        self._constants = fx.constants(self._gm, self._device)
        self._host_inputs = fx.host_inputs(self._gm)
        self._literals = fx.literal_results(self._gm)
        self._digest = hashlib.sha256(fx.canonical_text(self._gm).encode()).digest()
        self._graph = _C.Graph(self.name)
        _register(self)

    def __call__(self, *inputs: Any) -> list[Any]:
        with contextlib.nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            if self._obstacle:
                return list(torch.fx.Interpreter(self._gm).run(*inputs))
            if self._split.host is not None:
                return self._call_both(self._split, inputs)
            return self._call_device([*inputs, *self._constants])

    def _call_both(self, parts: Split, inputs: tuple[Any, ...]) -> list[Any]:
        assert parts.host is not None
        on_cpu = parts.host(*inputs)
        end = parts.num_passed + len(parts.host_results)
        results = self._call_device([*inputs, *on_cpu[: parts.num_passed], *self._constants])
        for i, value in zip(parts.host_results, on_cpu[parts.num_passed : end], strict=True):
            results[i] = value
        for i, value in zip(parts.host_writes, on_cpu[end:], strict=True):
            inputs[i].copy_(value)
        return results

    def _call_device(self, arguments: list[Any]) -> list[Any]:
        for i in self._split.unused:
            arguments[i] = None
        for i in self._host_inputs:
            arguments[i] = fx.to_device(arguments[i], self._device)
        results: list[Any] = self._graph(arguments)
        for i, value in self._literals.items():
            results[i] = value
        return results

    def plan(self, name: str, call: dict[str, Any], values: list[Any]) -> Any:
        """The plan of one call, from the disk or compiled in the background.

        Raises:
            PlanningError: the graph cannot be written as a program; names node and Python line.
        """
        key = b"graph\0" + self._digest + call["words"]
        known = planning.from_disk(name, key)
        if known is not None:
            return known[1]
        program, shape, lines = fx.write(self._gm, call, values)
        return planning.compile(name, key, program, shape, lambda e: _explain(e, lines))


def _register(function: CompiledFunction) -> None:
    """Plan calls of a function's graph, as long as the function lives."""
    alive = weakref.ref(function)

    def plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
        owner = alive()
        if owner is None:
            raise RuntimeError(f"{name} was called after its compiled function was freed")
        return owner.plan(name, call, values)

    planning.register(function.name, plan)
    weakref.finalize(function, planning.unregister, function.name)


def _explain(error: BaseException, lines: list[str]) -> str:
    """A failed compilation's text, with the graph's node that lowering/build.py gives by number."""
    found = re.search(r"\(node (\d+)\)", str(error))
    where = f" at {lines[int(found[1])]}" if found else ""
    return f"{type(error).__name__}: {error}{where}"
