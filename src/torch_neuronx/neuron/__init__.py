"""``torch.neuron``: the device's Python module, with torch.cuda's names and signatures."""

from __future__ import annotations

from torch_neuronx.neuron import memory
from torch_neuronx.neuron.device import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    exchange_device,
    get_amp_supported_dtype,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_sync_debug_mode,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    set_device,
    set_sync_debug_mode,
    synchronize,
)
from torch_neuronx.neuron.dynamo_metrics import get_dynamo_metrics, reset_dynamo_metrics
from torch_neuronx.neuron.memory import (
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_neuronx.neuron.random import (
    _get_generator as _get_generator,
)
from torch_neuronx.neuron.random import (
    _get_rng_state_offset as _get_rng_state_offset,
)
from torch_neuronx.neuron.random import (
    _set_rng_state_offset as _set_rng_state_offset,
)
from torch_neuronx.neuron.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.neuron.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_neuronx.neuron.types import TYPES

BFloat16Tensor = TYPES["BFloat16Tensor"]
BoolTensor = TYPES["BoolTensor"]
ByteTensor = TYPES["ByteTensor"]
CharTensor = TYPES["CharTensor"]
DoubleTensor = TYPES["DoubleTensor"]
FloatTensor = TYPES["FloatTensor"]
HalfTensor = TYPES["HalfTensor"]
IntTensor = TYPES["IntTensor"]
LongTensor = TYPES["LongTensor"]
ShortTensor = TYPES["ShortTensor"]

__all__ = [
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DeviceProperties",
    "DoubleTensor",
    "Event",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "Stream",
    "StreamContext",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
]


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    from torch_neuronx import _C

    return bool(_C.in_bad_fork())


# torch's compiler switches devices by these names.
_exchange_device = _maybe_exchange_device = exchange_device


def __getattr__(name: str) -> object:
    if name == "_initialized":  # torch.utils.checkpoint saves the device's RNG state only if set
        return is_initialized()
    raise AttributeError(f"module 'torch.neuron' has no attribute '{name}'")
