"""Memory of the modelled device: what lies in its address space (decision D7).

The complete statistics are a model's too: bytes belong to the plugin.
"""

from __future__ import annotations

from typing import Any

from torch_neuronx import _C
from torch_neuronx.neuron.device import DeviceLike, index_of
from torch_neuronx.neuron.target import current


def _memory(device: DeviceLike) -> dict[str, int]:
    return dict(_C.memory(index_of(device)))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors' storages, rounded as the allocator does."""
    return _memory(device).get("allocated", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Peak of ``memory_allocated`` since the start or ``reset_peak_memory_stats``."""
    return _memory(device).get("peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes reserved; nothing is kept beyond what is allocated."""
    return memory_allocated(device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Peak of ``memory_reserved``."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Set the peaks to the current values."""
    _C.reset_peak_memory(index_of(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the modelled device."""
    total = current().hbm_bytes
    return total - memory_allocated(device), total


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Statistics with torch.cuda's flat keys, as far as they are kept."""
    memory = _memory(device)
    stats: dict[str, Any] = {}
    for name in ("allocated_bytes", "active_bytes", "reserved_bytes"):
        stats[f"{name}.all.current"] = memory.get("allocated", 0)
        stats[f"{name}.all.peak"] = memory.get("peak", 0)
    stats["allocation.all.current"] = memory.get("allocations", 0) - memory.get("frees", 0)
    stats["allocation.all.allocated"] = memory.get("allocations", 0)
    stats["allocation.all.freed"] = memory.get("frees", 0)
    return stats


def empty_cache() -> None:
    """Nothing to do: no freed memory is kept."""
