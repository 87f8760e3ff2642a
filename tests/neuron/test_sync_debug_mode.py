"""``torch.neuron.set_sync_debug_mode``: finding the calls that wait for the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    yield
    torch.neuron.set_sync_debug_mode("default")


CALLS: list[Callable[[torch.Tensor], object]] = [
    lambda x: x.sum().item(),
    lambda x: x.cpu(),
    lambda x: x.tolist(),
    lambda x: bool(x.any()),
    lambda x: x.nonzero(),
    lambda x: x[x > 1],
    lambda x: torch.equal(x, x + 1),
    lambda x: torch.neuron.current_stream().synchronize(),
]


@pytest.mark.parametrize("call", CALLS)
def test_calls_that_wait(call: Callable[[torch.Tensor], object]) -> None:
    x = torch.arange(3.0, device="neuron")
    torch.neuron.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing neuron operation"):
        call(x)
    torch.neuron.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing neuron operation"):
        call(x)
    torch.neuron.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(x)


def test_calls_that_do_not_wait() -> None:
    x = torch.arange(3.0, device="neuron")
    torch.neuron.set_sync_debug_mode("error")
    y = (x * 2).to(torch.int64)
    y.copy_(torch.ones(3))
    y += torch.tensor([1, 2, 3]).to("neuron")
    torch.neuron.synchronize()
    torch.neuron.set_sync_debug_mode("default")
    assert y.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("given", "mode"), [("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2)]
)
def test_modes(given: int | str, mode: int) -> None:
    torch.neuron.set_sync_debug_mode(given)
    assert torch.neuron.get_sync_debug_mode() == mode


@pytest.mark.parametrize("given", ["loud", 3, -1])
def test_other_modes_are_refused(given: int | str) -> None:
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        torch.neuron.set_sync_debug_mode(given)
