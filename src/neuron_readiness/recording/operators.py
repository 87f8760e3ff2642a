"""Operators reached by a workload, by a dispatch mode: where each ran and what crossed over."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuron_readiness import trees

_OWN = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
# Copies between devices, and reading a value into Python.
_CROSSING = ("aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense")


@dataclasses.dataclass
class OperatorUse:
    """One overload at one place of the workload's source, in one phase."""

    overload: str
    phase: str
    line: str
    place: str  # device | host | transfer | view | scalar (single numbers on the host)
    count: int = 0
    bytes: int = 0  # of its tensor arguments and results
    transferred_bytes: int = 0  # across the boundary between host and device
    seconds: float = 0.0
    shapes: str = ""


class OperatorRecorder(TorchDispatchMode):
    """Counts operators below autograd. ``timed``: waits before and after each, so that times are
    the operator's own; such a run says nothing about the speed of the whole."""

    def __init__(self, device: str, synchronize: Callable[[], None], *, timed: bool = False):
        super().__init__()
        self._kind = device.split(":")[0]
        self._synchronize = synchronize
        self._timed = timed
        self._phase = "device"
        self.uses: dict[tuple[str, str, str, str], OperatorUse] = {}
        self.dtypes: dict[str, int] = defaultdict(int)  # floating dtypes computed on, by operator

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._timed:
            self._synchronize()
        start = time.perf_counter()
        result = func(*args, **kwargs)
        if self._timed:
            self._synchronize()
        seconds = time.perf_counter() - start if self._timed else 0.0
        self._note(func, trees.tensors((args, kwargs)), trees.tensors(result), seconds)
        return result

    def _note(
        self, func: Any, given: list[torch.Tensor], made: list[torch.Tensor], seconds: float
    ) -> None:
        name = func.name()
        place, crossing = self._place(name, func, given, made)
        key = (name, self._phase, user_line(), place)
        use = self.uses.get(key)
        if use is None:
            use = self.uses[key] = OperatorUse(name, self._phase, key[2], place)
            use.shapes = trees.shape_text(given)
        use.count += 1
        use.seconds += seconds
        use.transferred_bytes += crossing
        if place != "view":
            use.bytes += trees.num_bytes(given) + trees.num_bytes(made)
            for tensor in made:
                if tensor.is_floating_point() and place == "device" and tensor.dim():
                    self.dtypes[str(tensor.dtype).removeprefix("torch.")] += 1

    def _place(
        self, name: str, func: Any, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> tuple[str, int]:
        kinds_in = {t.device.type for t in given}
        kinds = kinds_in | {t.device.type for t in made}
        if name.startswith(_CROSSING):
            if name == "aten::_local_scalar_dense" and kinds_in != {"cpu"}:
                return "transfer", trees.num_bytes(given)
            if len(kinds) > 1:
                return "transfer", trees.num_bytes(made or given)
        if func.is_view:
            return "view", 0
        if self._kind in kinds or not kinds:
            return "device", 0
        # An optimizer counts its steps in single numbers on the host: bookkeeping, no tensor work.
        return ("host" if any(t.dim() for t in (*given, *made)) else "scalar"), 0


def user_line() -> str:
    """``file:line`` of the innermost frame outside torch and this package."""
    for frame in reversed(traceback.extract_stack(limit=60)):
        name = frame.filename
        if not name.startswith((_OWN, _TORCH)) and not name.startswith("<"):
            return f"{name}:{frame.lineno}"
    return ""
