"""What CUDA refuses is refused here, and the device goes on working."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support import assert_same
from torch_neuronx import dlpack


@pytest.fixture(autouse=True)
def _still_works() -> Iterator[None]:
    yield
    torch.neuron.synchronize()
    assert_same(torch.ones(2, device="neuron") + 1, torch.full((2,), 2.0))


X = torch.arange(4.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x[7],
        lambda x: x[torch.tensor([7])].cpu(),
        lambda x: x.index_select(0, torch.tensor([-5], device="neuron")).cpu(),
    ],
)
def test_indices_out_of_range(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        call(X.to("neuron"))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + X,
        lambda x: X + x,
        lambda x: x.add_(X),
        lambda x: torch.cat([x, X]),
        lambda x: torch.where(x > 1, x, X),
        lambda x: x[None] @ X[:, None],
        lambda x: torch.nn.functional.linear(x, X[None]),
        lambda x: torch.add(x, x, out=torch.empty(4)),
    ],
)
def test_devices_are_not_mixed(call: Callable[[torch.Tensor], Any]) -> None:
    x = X.to("neuron")
    with pytest.raises(RuntimeError, match="device"):
        call(x)
    assert_same(x, X)


def test_numbers_of_the_host_may_be_mixed_in() -> None:
    x = X.to("neuron")
    assert_same(x + torch.tensor(2.0), X + 2)
    assert_same(torch.tensor(2.0) * x, X * 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(1, device="neuron:7"),
        lambda: torch.full((1,), 2.0, device="neuron:7"),
        lambda: X.to("neuron:7"),
        lambda: torch.nn.Linear(1, 1).to("neuron:7"),
        lambda: torch.neuron.set_device(7),
        lambda: torch.accelerator.set_device_index(7),
        lambda: torch.neuron.device(7).__enter__(),
        lambda: torch.rand(1, device="neuron:7"),
        lambda: torch.Generator("neuron:7"),
        lambda: torch.neuron.synchronize(7),
        lambda: torch.neuron.get_device_properties("neuron:7"),
        lambda: torch.neuron.can_device_access_peer(0, 7),
    ],
)
def test_devices_that_are_not_there(call: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, AssertionError), match="neuron:7"):
        call()
    assert torch.neuron.current_device() == 0


def test_other_devices_are_no_devices_of_ours() -> None:
    for call in (torch.neuron.set_device, torch.neuron.synchronize, torch.neuron.get_device_name):
        with pytest.raises(ValueError, match="Expected a neuron device, but got: cpu"):
            call("cpu")


def test_negative_devices_change_nothing() -> None:
    torch.neuron.set_device(-1)
    with torch.neuron.device(-1), torch.neuron.device_of(X):
        assert torch.neuron.current_device() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: np.array([1.0]) @ x[:1],
        lambda x: x.__array__(),
    ],
)
def test_numpy_does_not_read_device_memory(call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(TypeError):
        call(X.to("neuron"))


def test_the_text_for_numpy_is_cudas() -> None:
    with pytest.raises(
        TypeError,
        match=r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\) to copy the "
        "tensor to host memory first.",
    ):
        np.asarray(X.to("neuron"))
    assert X.to("neuron").numpy(force=True).tolist() == X.tolist()


def test_dtypes_that_the_device_has_no_form_of() -> None:
    with pytest.raises(TypeError, match=r"complex32|ComplexHalf"):
        torch.empty(2, dtype=torch.complex32, device="neuron")


def test_a_storage_that_was_freed_is_not_read() -> None:
    x = torch.ones(3, device="neuron")
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        (x + 1).cpu()


@pytest.mark.parametrize("size", [-5, 0])
def test_sizes_that_no_block_has(size: int) -> None:
    with pytest.raises(ValueError, match=f"expected a size above 0 bytes, got {size}"):
        torch.neuron.caching_allocator_alloc(size)


@pytest.mark.parametrize("value", ["8", 2.5, None, True])
def test_sizes_and_addresses_are_integers(value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"expected size to be an int.* got {kind}"):
        torch.neuron.caching_allocator_alloc(value)
    with pytest.raises(TypeError, match=f"expected mem_ptr to be an int.* got {kind}"):
        torch.neuron.caching_allocator_delete(value)


@pytest.mark.parametrize("address", [-5, 0, 3, 1 << 70])
def test_addresses_that_are_none(address: int) -> None:
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.neuron.caching_allocator_delete(address)


@pytest.mark.parametrize("source", [3, "x", None, [1.0]])
def test_what_dlpack_cannot_take(source: Any) -> None:
    kind = type(source).__name__
    with pytest.raises(TypeError, match=f"an object with __dlpack__ or a .* capsule, got {kind}"):
        dlpack.from_dlpack(source)
    with pytest.raises(TypeError, match=f"expected a neuron tensor, got {kind}"):
        dlpack.to_dlpack(source)
