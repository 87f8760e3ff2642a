"""Running a function adaptively until what repeats in it is fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_neuronx
from torch_neuronx import _C
from torch_neuronx.compiler import session

ROUNDS = 8


@pytest.fixture(autouse=True)
def no_budget() -> Iterator[None]:
    """What other tests of the process compiled does not count."""
    torch.neuron.synchronize()
    _C.set_eager_limits(1_000_000, 128)
    yield


def bits(x: Any) -> Any:
    """Tensors, however nested, as CPU integers, in which every nan equals every other."""
    if isinstance(x, torch.Tensor):
        host = x.detach().cpu()
        if host.is_complex():
            host = torch.view_as_real(host)
        if not host.is_floating_point():
            return host
        host = torch.where(host.isnan(), torch.tensor(float("nan"), dtype=host.dtype), host)
        kind = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
        return host.contiguous().view(kind[host.element_size()])
    if isinstance(x, (list, tuple)):
        return [bits(y) for y in x]
    return x


def equal(a: Any, b: Any) -> bool:
    """Whether two answers of ``bits`` are the same."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def compiled() -> None:
    """Wait until nothing is compiled in the background."""
    torch.neuron.synchronize()
    session.compiler().drain()


def both(function: Callable[[], Any], rounds: int = ROUNDS) -> tuple[list[Any], list[Any]]:
    """Bits of every round of ``function`` in per-op mode and in adaptive mode."""
    answers = []
    for mode in ("per-op", "adaptive"):
        torch.manual_seed(0)
        with torch_neuronx.eager_mode(mode):
            found = []
            for _ in range(rounds):
                found.append(bits(function()))
                compiled()
            answers.append(found)
    return answers[0], answers[1]


class Fused:
    """``with Fused() as new: ...; assert new.operators > 0``: fused meanwhile."""

    def __enter__(self) -> Fused:
        self._before = torch_neuronx.eager_stats()
        return self

    def __exit__(self, *_: object) -> None:
        torch.neuron.synchronize()
        now = torch_neuronx.eager_stats()
        self.operators = now["fused_operators"] - self._before["fused_operators"]
        self.launches = now["fused_launches"] - self._before["fused_launches"]
        self.compiles = now["background_compiles"] - self._before["background_compiles"]
