"""DLPack: device tensors for other libraries, and their arrays for the device.

torch's own export refuses a renamed device (``tensor.__dlpack_device__()`` raises), and nothing of
torch is patched here. A device whose memory the host can address, as the CPU plugins', is exported
as host memory without a copy; of any other, a copy is exported.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import _C

__all__ = ["Exported", "from_dlpack", "to_dlpack"]

_VERSION = (1, 0)


class Exported:
    """Host memory in DLPack's protocol: ``numpy.from_dlpack``, ``torch.from_dlpack``, ... take it.

    ``copied`` says whether it is a copy, or the tensor's own memory.
    """

    def __init__(self, host: torch.Tensor, copied: bool) -> None:
        self._host = host
        self.copied = copied

    def __dlpack__(self, **request: Any) -> Any:
        return self._host.__dlpack__(**request)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._host.__dlpack_device__()


def to_dlpack(tensor: torch.Tensor, copy: bool | None = None) -> Exported:
    """Export a device tensor as host memory; waits for the device.

    Without a copy, the tensor's storage is pinned to that memory until the last export of it is
    gone: what the device writes arrives there before the writing call returns, and what others
    write there the device sees. A pinned storage cannot be resized.

    Args:
        tensor: a tensor on the device, of any strides.
        copy: True always copies; False never does; None copies where it must.

    Raises:
        ValueError: the tensor is not on the device.
        BufferError: ``copy=False`` and the memory cannot be shared, or the tensor requires grad.

    Stage: experimental.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a neuron tensor, got {type(tensor).__name__}")
    if tensor.device.type != "neuron":
        raise ValueError(f"expected a neuron tensor, got one on {tensor.device}; export it itself")
    if tensor.requires_grad:
        raise BufferError("a tensor that requires grad cannot be exported: use tensor.detach()")
    why = "copy=True"
    if copy is not True:
        why = _cannot_share(tensor)
        host = None if why else _C.export_to_host(tensor)
        if host is not None:
            return Exported(host, copied=False)
        why = why or "the host cannot address this plugin's memory"
    if copy is False:
        raise BufferError(f"cannot export this tensor without a copy: {why}")
    return Exported(tensor.cpu(), copied=True)


def _cannot_share(tensor: torch.Tensor) -> str:
    if tensor.is_conj() or tensor.is_neg():
        return "it is a conjugate or negative view; resolve it first"
    return "" if tensor.numel() else "it has no elements"


def from_dlpack(
    source: Any, device: torch.device | str | int | None = None, copy: bool | None = None
) -> torch.Tensor:
    """A device tensor of an array of another library, which must be in host memory.

    The array's own memory is used only when it is declared read-only, dense in row-major order and
    aligned to 64 bytes; it must not change while the tensor lives. Writing the tensor leaves that
    memory as it is. Otherwise the array is copied.

    Args:
        source: an object with ``__dlpack__`` and ``__dlpack_device__``, or a capsule.
        device: a neuron device; None is the current one.
        copy: True always copies; False never does; None copies where it must.

    Raises:
        BufferError: ``copy=False`` and the memory cannot be used.
        RuntimeError: there is no such device.
        TypeError: ``source`` has no ``__dlpack__`` and is no capsule.
        ValueError: ``device`` is of another type.

    Stage: experimental.
    """
    target = torch.device("neuron" if device is None else device)
    if target.type != "neuron":
        raise ValueError(f"expected a neuron device, got {target}")
    capsule = _capsule(source)
    read_only = _C.is_read_only_dlpack(capsule)
    host = torch.utils.dlpack.from_dlpack(capsule)
    if host.device.type != "cpu":
        raise BufferError(f"expected an array in host memory, got one on {host.device}; copy it")
    why = "copy=True"
    if copy is not True:
        why = _cannot_import(host, read_only)
        index = target.index if target.index is not None else _C.current_device()
        made = None if why else _C.import_read_only(host, index)
        if made is not None:
            return made
        why = why or "this plugin does not use host memory in place"
    if copy is False:
        raise BufferError(f"cannot import this array without a copy: {why}")
    return host.to(target)


def _capsule(source: Any) -> Any:
    if not hasattr(source, "__dlpack__"):
        if type(source).__name__ != "PyCapsule":
            raise TypeError(
                "expected an object with __dlpack__ or a DLPack capsule, got "
                f"{type(source).__name__}"
            )
        return source
    try:
        return source.__dlpack__(max_version=_VERSION)
    except TypeError:  # a producer from before versions
        return source.__dlpack__()


def _cannot_import(host: torch.Tensor, read_only: bool) -> str:
    if not read_only:
        return "it is not declared read-only"
    if not host.is_contiguous():
        return "it is not dense in row-major order"
    if not host.numel():
        return "it has no elements"
    return "" if host.data_ptr() % 64 == 0 else "its address is no multiple of 64"
