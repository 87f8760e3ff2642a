"""The program's modes (default device, function and dispatch modes) do not reach the planner.

Planning a new call runs PyTorch operators on the meta device and on CPU; under the program's
default device these became calls of the device, planned in their turn, without end.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support import assert_same


class CountingFunctions(TorchFunctionMode):
    """Counts the functions that it sees by name."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class CountingOperators(TorchDispatchMode):
    """Counts the operators that it sees by name."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def _default_device() -> Iterator[None]:
    torch.set_default_device("neuron")
    try:
        yield
    finally:
        torch.set_default_device(None)


# Each length is used once: a call that was planned before is not planned again.
_lengths = iter(range(101, 1000))


def fresh() -> torch.Tensor:
    """A device tensor of a length that no call has had."""
    return torch.ones(next(_lengths), device="neuron")


def _saved(value: object) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.usefixtures("_default_device")
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.untyped_storage()[0] == 0 and x.untyped_storage()[3] == 63,
        lambda x: x.untyped_storage().tolist()[:4] == [0, 0, 128, 63],
        lambda x: "device=neuron:0" in str(x.untyped_storage()),
        lambda x: bool(x.untyped_storage().fill_(0)) and x.sum().item() == 0,
        lambda x: bool(torch.equal(pickle.loads(pickle.dumps(x)), x)),
        lambda x: bool(torch.equal(_saved(x), x)),
        lambda x: repr(x).startswith("tensor([1., 1."),
    ],
)
def test_storages_under_a_default_device(read: Callable[[torch.Tensor], bool]) -> None:
    assert read(fresh())


@pytest.mark.usefixtures("_default_device")
def test_modules_and_optimizers_are_saved_under_a_default_device() -> None:
    model = torch.nn.Linear(next(_lengths), 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, model.in_features)).sum().backward()
    optimizer.step()
    for again in (pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(optimizer))):
        assert type(again) in (torch.nn.Linear, torch.optim.Adam)
    state = _saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert state["model"]["weight"].device.type == "neuron"
    assert_same(state["model"]["weight"], model.weight.detach().cpu())
    moment = optimizer.state[model.weight]["exp_avg"]
    assert_same(state["optimizer"]["state"][0]["exp_avg"], moment.cpu())


@pytest.mark.usefixtures("_default_device")
def test_errors_are_worded_under_a_default_device() -> None:
    x = fresh()
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(dim=3)
    with pytest.raises(RuntimeError, match="same dtype"):
        x[None] @ x[:, None].long()
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(x, 1.5, out=torch.empty(x.shape, dtype=torch.int64))
    assert_same(torch.special.laguerre_polynomial_l(x, 3), -2 / 3 * torch.ones(len(x)).cpu())


def test_a_function_mode_does_not_see_the_planner() -> None:
    x = fresh()
    with CountingFunctions() as mode:
        x.untyped_storage()[0]
        y = x * 2
    assert set(mode.seen) <= {"untyped_storage", "mul", "__get__"}, mode.seen
    assert_same(y, torch.full(x.shape, 2.0))


def test_a_dispatch_mode_does_not_see_the_planner() -> None:
    x = fresh()
    with CountingOperators() as mode:
        y = x * 2
        x.untyped_storage()[0]
    assert mode.seen[0] == "aten.mul.Tensor"
    assert not [name for name in mode.seen if "empty_strided" in name or "full" in name], mode.seen
    assert_same(y, torch.full(x.shape, 2.0))
