"""DLPack: truly shared or refused, never two buffers that drift apart."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from support import assert_same
from torch_neuronx.dlpack import from_dlpack, to_dlpack


def aligned(shape: tuple[int, ...], dtype: type = np.float32, offset: int = 0) -> np.ndarray:
    """An array whose address is a multiple of 64, plus ``offset`` bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + size].view(dtype).reshape(shape)


def test_an_export_is_the_memory_itself() -> None:
    x = torch.arange(12.0, device="neuron").reshape(3, 4)
    exported = to_dlpack(x)
    array = np.from_dlpack(exported)
    assert not exported.copied and array.tolist() == x.tolist()
    address = x.data_ptr()
    x.add_(1)  # the device writes
    assert array[0].tolist() == [1, 2, 3, 4]
    x[1].mul_(2)  # through a view
    assert array[1].tolist() == [10, 12, 14, 16]
    x.copy_(torch.zeros(3, 4))  # from the host
    assert not array.any()
    torch.add(x, 5, out=x)
    assert (array == 5).all()
    array[2, 3] = 7  # and somebody else
    assert x[2].tolist() == [5, 5, 5, 7]
    assert (x * 2)[2, 3].item() == 14
    assert x.data_ptr() == address


def test_views_are_exported_with_their_strides() -> None:
    x = torch.arange(24.0, device="neuron").reshape(4, 6)
    part = x[1:, ::2].t()
    array = np.from_dlpack(to_dlpack(part))
    assert array.tolist() == part.tolist() and not array.flags.c_contiguous
    again = torch.from_dlpack(to_dlpack(x))  # a second export looks at the same memory
    array[0, 0] = -1
    assert again[1, 0].item() == -1 and x[1, 0].item() == -1


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64, torch.complex64]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2]).to(dtype)
    assert np.from_dlpack(to_dlpack(x.to("neuron"))).tolist() == x.tolist()
    assert_same(from_dlpack(x), x)


def test_the_export_outlives_the_tensor_and_the_tensor_the_export() -> None:
    x = torch.arange(5.0, device="neuron")
    array = np.from_dlpack(to_dlpack(x))
    view = x[1:]
    del x
    gc.collect()
    assert array.tolist() == [0, 1, 2, 3, 4]
    array[1] = 9
    del array
    gc.collect()
    view.add_(1)
    assert view.tolist() == [10, 3, 4, 5]


def test_a_pinned_storage_keeps_its_size() -> None:
    x = torch.arange(4.0, device="neuron")
    exported = to_dlpack(x)
    with pytest.raises(RuntimeError, match="exported through DLPack"):
        x.untyped_storage().resize_(64)
    del exported
    gc.collect()
    x.untyped_storage().resize_(64)
    assert x.tolist() == [0, 1, 2, 3]


def test_copies_when_asked_or_needed() -> None:
    x = torch.arange(4.0, device="neuron")
    exported = to_dlpack(x, copy=True)
    array = np.from_dlpack(exported)
    x.add_(1)
    assert exported.copied and array.tolist() == [0, 1, 2, 3]
    lazy = torch.tensor([1 + 2j], device="neuron").conj()
    assert to_dlpack(lazy).copied
    assert np.from_dlpack(to_dlpack(lazy)).tolist() == [1 - 2j]
    with pytest.raises(BufferError, match="without a copy: it is a conjugate"):
        to_dlpack(lazy, copy=False)
    assert not to_dlpack(x, copy=False).copied


def test_what_cannot_be_exported() -> None:
    with pytest.raises(ValueError, match="expected a neuron tensor, got one on cpu"):
        to_dlpack(torch.ones(2))
    with pytest.raises(BufferError, match="requires grad"):
        to_dlpack(torch.ones(2, device="neuron", requires_grad=True))
    # torch's own export does not know a renamed device.
    with pytest.raises(ValueError, match="neuron"):
        torch.ones(2, device="neuron").__dlpack_device__()


def test_aligned_read_only_memory_is_used_in_place() -> None:
    array = aligned((3, 5))
    array[:] = np.arange(15).reshape(3, 5)
    array.flags.writeable = False
    x = from_dlpack(array, copy=False)
    assert x.device == torch.device("neuron:0")
    assert_same(x * 2, torch.arange(0.0, 30.0, 2).reshape(3, 5))
    x.add_(1)  # leaves the memory, which is not ours to write
    assert array[0, 0] == 0
    assert_same(x, torch.arange(1.0, 16.0).reshape(3, 5))
    y = from_dlpack(array, device="neuron:0")
    del array
    gc.collect()
    assert y.sum().item() == 105


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (aligned((4, 4)), "not declared read-only"),
        (aligned((4, 4), offset=4), "multiple of 64"),
        (aligned((4, 4)).T[::2], "row-major order"),
    ],
)
def test_other_memory_is_copied(array: np.ndarray, why: str) -> None:
    array[...] = 3
    array.flags.writeable = "read-only" in why
    x = from_dlpack(array)
    assert (x == 3).all().item()
    with pytest.raises(BufferError, match=why):
        from_dlpack(array, copy=False)


def test_imports_from_torch_and_from_capsules() -> None:
    host = torch.arange(6).reshape(2, 3)
    assert_same(from_dlpack(host), host)
    assert_same(from_dlpack(torch.utils.dlpack.to_dlpack(host)), host)
    assert_same(from_dlpack(to_dlpack(host.to("neuron"))), host)
    with pytest.raises(ValueError, match="expected a neuron device, got cpu"):
        from_dlpack(host, device="cpu")
