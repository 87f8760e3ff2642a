"""A backend without a device, and a lowering without jax."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

from torch_neuronx.lowering import program as program_module
from torch_neuronx.lowering.client import LoweredReply
from torch_neuronx.lowering.program import (
    Array,
    Constant,
    Node,
    Output,
    Program,
    Read,
    Result,
    View,
)

PACKAGE = str(pathlib.Path(program_module.__file__).parents[1])

# Begins the code of a child process that has the compiler without the device: the package's own
# __init__ would import torch.
BARE = f"""
import sys, types
package = types.ModuleType("torch_neuronx")
package.__path__ = [{PACKAGE!r}]
sys.modules["torch_neuronx"] = package
"""


def program(n: int = 4, op: str = "aten::add.Tensor") -> Program:
    """self + other of n float32 elements each."""
    array, view = Array("float32", (n,)), View("float32", (n,), (1,))
    return Program(
        params=(array, array),
        nodes=(Node(op, (Read(0, view), Read(1, view), Constant(1)), (array,)),),
        outputs=(Output(Result(0)),),
    )


class FakeBackend:
    """Handles are texts; what is called is listed in ``calls``."""

    platform = "cpu"
    stablehlo_version = "1.9.3"

    def __init__(
        self, *, serializes: bool = True, before: Callable[[], Any] = lambda: None
    ) -> None:
        self.calls: list[str] = []
        self.serializes = serializes
        self.before = before
        self.lock = threading.Lock()

    def _note(self, call: str) -> None:
        with self.lock:
            self.calls.append(call)

    def compile(self, module: bytes, options: bytes) -> str:
        self._note("compile")
        self.before()
        return "executable of " + module.hex()

    def serialize(self, handle: str) -> bytes | None:
        return handle.encode() if self.serializes else None

    def deserialize(self, data: bytes) -> str:
        self._note("deserialize")
        text = data.decode()
        if not text.startswith("executable of "):
            raise RuntimeError("INVALID_ARGUMENT: not an executable")
        return text


class FakeLower:
    """Answers with a module that is the program's text; counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, program: Program, platform: str, version: str) -> LoweredReply:
        self.count += 1
        return LoweredReply(
            module=program.to_json().encode(),
            kept=(0, 1),
            results=(Array("float32", (4,)), Array("int64", (2,))),
            checks=(("IndexError", "index {value} is out of range"),),
            rng_increment=4,
            aliases={1: 0},
            seconds=0.25,
        )
