"""Devices: count, current one, properties, waiting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from torch_neuronx import _C, config
from torch_neuronx.neuron import target

DeviceLike = torch.device | int | str | None


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What the device is: the modelled target, and the plugin that really runs it.

    ``name`` is the chip that the target models ("trn2"), or "host"; ``total_memory`` is the
    target's HBM of one logical core, in bytes. ``major`` and ``minor`` are what
    ``get_device_capability`` gives. ``host_kernels``: "off", the host kernels that programs may
    call (TORCH_NEURONX_HOST_KERNELS), or why there are none.
    """

    name: str
    index: int
    target: str
    target_description: str
    total_memory: int
    plugin: str
    plugin_version: str
    pjrt_version: str
    platform: str
    host_kernels: str = "off"
    major: int = 0
    minor: int = 0
    multi_processor_count: int = 1


def index_of(device: DeviceLike = None) -> int:
    """The index that ``device`` means; None, -1 and bare "neuron" are the current device.

    Raises:
        AssertionError: the index is below -1.
        ValueError: the device is of another type.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        if device < -1:
            raise AssertionError(_no_such_device(device))
        return current_device() if device < 0 else device
    parsed = torch.device(device)
    if parsed.type != "neuron":
        raise ValueError(f"Expected a neuron device, but got: {parsed}")
    return current_device() if parsed.index is None else parsed.index


def _no_such_device(index: int) -> str:
    return (
        f"Invalid device id: neuron:{index} (this process has {device_count()} neuron "
        "device(s); TORCH_NEURONX_NUM_DEVICES sets the number)"
    )


def _checked(device: DeviceLike) -> int:
    index = index_of(device)
    if not 0 <= index < device_count():
        raise AssertionError(_no_such_device(index))
    return index


def is_available() -> bool:
    """Whether a plugin is there to run the device. Starts nothing."""
    from torch_neuronx import plugins

    try:
        return Path(plugins.resolve(config.get("TORCH_NEURONX_PJRT_PLUGIN"))).is_file()
    except (RuntimeError, OSError):
        return False


def is_initialized() -> bool:
    """Whether the runtime was started."""
    return bool(_C.is_started()) and not _C.in_bad_fork()


def init() -> None:
    """Start the runtime, if it is not started."""
    if _C.in_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize the neuron device in a forked subprocess. To use it with "
            "multiprocessing, use the 'spawn' start method."
        )
    from torch_neuronx.neuron import startup

    startup.start()


def device_count() -> int:
    """Number of devices of this process (``TORCH_NEURONX_NUM_DEVICES``)."""
    return int(_C.device_count())


def current_device() -> int:
    """Index of the current device of this thread.

    A thread that chose none has the one that the main thread set last: CUDA's threads start on
    device 0 instead, which sends what worker threads load to the wrong device.
    """
    return int(_C.current_device())


def set_device(device: DeviceLike) -> None:
    """Make ``device`` current for this thread; a negative index changes nothing.

    Starts no device. Set in the main thread it also holds for threads that choose none.

    Raises:
        RuntimeError: there is no such device.
    """
    if not (isinstance(device, int) and device < 0):
        _C.set_device(index_of(device))


def exchange_device(device: int) -> int:
    """Make a device current for this thread alone; returns the one before. -1 changes nothing."""
    before = current_device()
    if device >= 0 and device != before:
        _C.exchange_device(device)
    return before


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on a device; raises the earliest error it left."""
    _C.synchronize(_checked(device))


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What a call does that makes the host wait for the device, as a help to find them.

    Such calls are those that read a tensor's values (``item``, ``cpu``, ``tolist``, ``print``, a
    result whose shape depends on data) and a stream's ``synchronize``. Not counted, as in
    torch.cuda: ``torch.neuron.synchronize`` and an event's.

    Args:
        debug_mode: "default" or 0: nothing more; "warn" or 1: a warning; "error" or 2: a
            RuntimeError, and the call is not made.

    Raises:
        RuntimeError: another mode.
    """
    mode = _SYNC_DEBUG_MODES.index(debug_mode) if debug_mode in _SYNC_DEBUG_MODES else debug_mode
    if mode not in range(len(_SYNC_DEBUG_MODES)):
        raise RuntimeError(
            f"invalid value of debug_mode, expected one of `default`, `warn`, `error` (0, 1, 2), "
            f"got {debug_mode!r}"
        )
    _C.set_sync_debug_mode(int(mode))


def get_sync_debug_mode() -> int:
    """What synchronising calls do: 0 nothing more, 1 warn, 2 raise."""
    return _C.sync_debug_mode()


def get_device_name(device: DeviceLike = None) -> str:
    """Name of the device: ``neuron:<index>``, the modelled target and the plugin's platform."""
    properties = get_device_properties(device)
    return (
        f"neuron:{properties.index} ({properties.target_description}, run by PJRT platform "
        f"{properties.platform})"
    )


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Properties of a device; starts the runtime.

    Raises:
        AssertionError: there is no such device.
    """
    from torch_neuronx import plugins
    from torch_neuronx.compiler import host_kernels

    index = _checked(device)
    init()
    info = _C.platform()
    profile = target.current()
    plugin = Path(info["plugin_path"])
    names = [n for n, p in plugins.discover().items() if p.resolve() == plugin.resolve()]
    return DeviceProperties(
        name=profile.name,
        index=index,
        target=profile.name,
        target_description=profile.description,
        total_memory=profile.hbm_bytes,
        plugin=names[0] if names else str(plugin),
        plugin_version=plugins.version(names[0]) if names else "",
        pjrt_version=info["pjrt_version"],
        platform=_platform(info["platform_name"], info["platform_version"]),
        host_kernels=host_kernels.describe(),
    )


def _platform(name: str, version: str) -> str:
    # XLA's CPU plugins give their name as their version.
    return name if version in ("", name) else f"{name} {version}"


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Always (0, 0): the target has no CUDA-like capability number.

    ``torch.accelerator.get_device_capability()`` lists the dtypes.
    """
    _checked(device)
    return 0, 0


def get_arch_list() -> list[str]:
    """Target profiles that ``TORCH_NEURONX_TARGET`` takes."""
    return list(target.TARGETS)


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether a tensor can be copied between two devices without a detour through the program.

    True for any two devices of this process; False for a device and itself, as on CUDA.
    """
    return _checked(device) != _checked(peer_device)


def ipc_collect() -> None:
    """Nothing to do: device memory is never shared with another process.

    ``torch.multiprocessing`` hands tensors over through host memory (``tensor.cpu()``).
    """


def is_tf32_supported() -> bool:
    """False: float32 products are computed in float32."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is exact on every target."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast("neuron")`` takes; float32 casts everything up, as on CUDA."""
    return [torch.bfloat16, torch.float16, torch.float32]


class device:
    """Context manager that makes a device current in this thread; -1 changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = index_of(device) if not (isinstance(device, int) and device < 0) else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = exchange_device(self.idx)

    def __exit__(self, *_: object) -> None:
        exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current, if it is on one."""

    def __init__(self, obj: Any) -> None:
        on_device = obj.device.type == "neuron"
        super().__init__(obj.device.index if on_device else -1)
