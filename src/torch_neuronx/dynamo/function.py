"""A compiled graph: one executable a concrete signature, planned at the first call with it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import warnings
import weakref
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.compiler import overloads, planning
from torch_neuronx.dynamo import graph as fx

_serial = itertools.count()


class CompiledFunction:
    """Callable on the graph's inputs; gives the list of its outputs.

    A graph that has an operator without a rule, or that leaves the device, is run operator by
    operator instead, where the fallback policy applies (decision D8); that is said in a warning.
    """

    def __init__(self, gm: torch.fx.GraphModule, name: str) -> None:
        self.name = f"{name}_{next(_serial)}"
        self._gm = gm
        self._constants = fx.constants(gm)
        self._obstacle = fx.obstacle(gm, overloads.rule_names())
        if self._obstacle:
            warnings.warn(
                f"torch.compile(backend='neuron'): {self.name} runs operator by operator, because "
                f"{self._obstacle}",
                UserWarning,
                stacklevel=2,
            )
            return
        self._digest = hashlib.sha256(fx.canonical_text(gm).encode()).digest()
        self._graph = _C.Graph(self.name)
        planning.register(self.name, self._plan)
        weakref.finalize(self, planning.unregister, self.name)

    def __call__(self, *inputs: Any) -> list[Any]:
        if self._obstacle:
            return list(torch.fx.Interpreter(self._gm).run(*inputs))
        with contextlib.nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            return self._graph([*inputs, *self._constants])

    def _plan(self, name: str, call: dict[str, Any], values: list[Any]) -> Any:
        key = b"graph\0" + self._digest + call["words"]
        known = planning.from_disk(name, key)
        if known is not None:
            return known[1]
        program, shape = fx.write(self._gm, call, values)
        return planning.compile(name, key, program, shape)
