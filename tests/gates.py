"""A launch that is compiled when the test says so, and faults of the plugin."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.compiler import options, planning

_numbers = itertools.count()
_MODULE = """
module {{
  func.func public @main(%x: tensor<{n}xf32>) -> tensor<{n}xf32> {{
    %one = stablehlo.constant dense<1.0> : tensor<{n}xf32>
    %y = stablehlo.add %x, %one : tensor<{n}xf32>
    return %y : tensor<{n}xf32>
  }}
}}
"""


class Gate:
    """``gate(x)`` is ``x + 1`` for float32 vectors of one length; it waits, with all that comes
    after it on its stream or uses its tensors, until ``open()``."""

    def __init__(self) -> None:
        self.name = f"test::gate{next(_numbers)}"
        self._graph = _C.Graph(self.name)
        self._kernel = _C.Kernel(self.name)
        self._length = 0
        planning.register(self.name, self._plan)

    def _plan(self, name: str, call: dict[str, Any], values: list[Any]) -> Any:
        self._length = len(values[0])
        outputs: list[Any] = [("float32", [self._length], [])]
        return _C.make_plan(self._kernel, outputs, [("output", 0)], [], 0, False, False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._graph([x])[0]

    def open(self) -> None:
        """The compile ends."""
        module = _MODULE.format(n=self._length).encode()
        bound = len(_C.platform()["devices"]) == 1
        executable = _C.compile(module, options.encode(options.EXACT_CPU, portable=not bound))
        self._kernel.set_ready(executable, 1000, [0], [], [], "")

    def fail(self, why: str) -> None:
        """The compile fails."""
        self._kernel.set_failed(why)


@contextlib.contextmanager
def fault(call: str, message: str, **options: int) -> Iterator[None]:
    """Calls of the plugin fail inside; at least one must. ``options``: as ``_C.inject_fault``."""
    torch.neuron.synchronize()
    _C.inject_fault(call, message, **options)
    try:
        yield
        assert _C.clear_faults() > 0, f"no {call} was made"
    finally:
        _C.clear_faults()
