"""Memory of the modelled device: what lies in its address space (decision D7).

The caching segment allocator decides where tensors would lie on the target; bytes belong to the
plugin. So every figure here is the model's: names, signatures and meaning are those of
``torch.cuda.memory``. ``reserved >= allocated >= active``, and executables' temporaries count as
allocated for the time of their launch.
"""

from __future__ import annotations

import collections
import inspect
import pickle
import sys
from pathlib import Path
from typing import Any, Literal

from torch_neuronx import _C
from torch_neuronx.neuron import target
from torch_neuronx.neuron.device import (
    DeviceLike,
    _checked,
    init,
    is_initialized,
)

_METRICS = (
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "Reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("temporary_bytes", "Executables' temps", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "Reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
_POOLS = (
    ("all", ""),
    ("large_pool", "      from large pool"),
    ("small_pool", "      from small pool"),
)


class MemoryStats(collections.OrderedDict[str, Any]):
    """Flat statistics with torch.cuda's keys, which also answer to a metric's bare name.

    ``stats["allocated_bytes.all.peak"]`` is an int. ``stats["allocated_bytes"]`` is a dict with
    ``current``, ``peak``, ``allocated`` and ``freed`` of all pools, and the same of each pool under
    ``all``, ``small_pool`` and ``large_pool``. Iteration yields the flat keys only.
    """

    def __init__(self, nested: dict[str, Any]) -> None:
        super().__init__()
        self._nested: dict[str, Any] = {}
        flat: dict[str, Any] = {}
        for metric, value in nested.items():
            if not isinstance(value, dict):
                flat[metric] = value
                continue
            if "all" in value:
                self._nested[metric] = {**value["all"], **value}
                flat.update(
                    {f"{metric}.{p}.{k}": v for p, of in value.items() for k, v in of.items()}
                )
            else:
                self._nested[metric] = value
                flat.update({f"{metric}.{k}": v for k, v in value.items()})
        for key in sorted(flat):
            self[key] = flat[key]

    def __missing__(self, key: str) -> Any:
        return self._nested[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._nested

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce__(self) -> Any:
        return _rebuild, (dict(self), self._nested)


def _rebuild(flat: dict[str, Any], nested: dict[str, Any]) -> MemoryStats:
    stats = MemoryStats({})
    stats.update(flat)
    stats._nested.update(nested)
    return stats


# -- Statistics -----------------------------------------------------------------------------------


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The statistics of ``memory_stats`` as nested dicts."""
    stats = _C.memory_stats(_checked(device))
    zero = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    # Counted by torch.cuda and impossible here: no block is refused splitting for its size.
    stats["oversize_allocations"], stats["oversize_segments"] = dict(zero), dict(zero)
    stats["max_split_size"] = -1
    stats["num_sync_all_streams"] = 0
    # Names of AWS's beta.
    stats["allocation_requests"] = stats["allocation"]["all"]["allocated"]
    stats["num_tensor_frees"] = stats["allocation"]["all"]["freed"]
    return dict(stats)


def memory_stats(device: DeviceLike = None) -> MemoryStats:
    """Statistics of the allocator, in bytes and counts; all 0 before the device is first used.

    Keys are torch.cuda's: ``{allocated_bytes,reserved_bytes,active_bytes,requested_bytes,
    inactive_split_bytes,allocation,segment,active,inactive_split}.{all,large_pool,small_pool}.
    {current,peak,allocated,freed}``, ``num_alloc_retries``, ``num_ooms``, ``num_device_alloc``,
    ``num_device_free``; also ``temporary_bytes.*``: what executables needed for themselves. A bare
    metric name (``stats["allocated_bytes"]["peak"]``) works, too. See `MemoryStats`.
    """
    return MemoryStats(memory_stats_as_nested_dict(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors' blocks, rounded as the allocator does."""
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Peak of ``memory_allocated``, executables' temporaries included, since the last reset."""
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of the segments that the allocator holds, used or cached."""
    return int(memory_stats(device).get("reserved_bytes.all.current", 0))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Peak of ``memory_reserved`` since the last reset."""
    return int(memory_stats(device).get("reserved_bytes.all.peak", 0))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Set all peaks to the current values."""
    if is_initialized():
        _C.reset_peak_memory(_checked(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Set the historical totals (``allocated``, ``freed``) and event counters to zero."""
    if is_initialized():
        _C.reset_accumulated_memory(_checked(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free (not reserved) and total bytes of the modelled device; starts it if need be."""
    init()
    free, total = _C.memory_info(_checked(device))
    return free, total


def _size(value: int, reference: int) -> str:
    prefix, scaled = "B  ", float(reference)
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if scaled < 768 * 1024:
            break
        prefix, value, scaled = larger, value // 1024, scaled / 1024
    return f"{value:6d} {prefix}"


def _count(value: int, reference: int) -> str:
    prefix, scaled = " ", float(reference)
    for larger in ("K", "M"):
        if scaled < 750 * 1000:
            break
        prefix, value, scaled = larger, value // 1000, scaled / 1000
    return f"{value:7d} {prefix} "


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A table of ``memory_stats`` for people; ``abbreviated`` leaves the pools out."""
    index = _checked(device)
    stats = memory_stats(index)
    rule = "-" * 75
    head = f"Neuron Memory Summary, device {index}, model of {target.current().name}"
    largest = _C.largest_free_block(index) if is_initialized() else target.current().hbm_bytes
    counts = (
        f"OOMs: {stats.get('num_ooms', 0)} | retries: {stats.get('num_alloc_retries', 0)} | "
        f"largest free block: {largest >> 20} MiB"
    )
    lines = [
        "=" * 75,
        f"{head:^75}",
        rule,
        f"{counts:^75}",
        "=" * 75,
        f" {'Metric':<21} | {'Cur Usage':^10} | {'Peak Usage':^10} | {'Tot Alloc':^10} |"
        f" {'Tot Freed':^10} ",
    ]
    for metric, title, in_bytes in _METRICS:
        lines.append(rule)
        text = _size if in_bytes else _count
        kinds = ("current", "peak", "allocated", "freed")
        reference = {kind: stats.get(f"{metric}.all.{kind}", 0) for kind in kinds}
        for pool, name in _POOLS[: 1 if abbreviated else None]:
            cells = [text(stats.get(f"{metric}.{pool}.{k}", 0), reference[k]) for k in kinds]
            lines.append(f" {name or title:<21} | " + " | ".join(cells) + " ")
    lines.append("=" * 75)
    return "".join(f"|{line}|\n" for line in lines)


# -- Limits and caches ----------------------------------------------------------------------------


def empty_cache() -> None:
    """Give back all segments that hold no tensor, on every device of the process."""
    if is_initialized():
        _C.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Let the allocator reserve at most this part (0 to 1) of the device's memory.

    Raises:
        TypeError: ``fraction`` is not a float.
        ValueError: it is not in 0 to 1.
    """
    init()
    if not isinstance(fraction, float):
        raise TypeError(
            f"Invalid type for fraction argument, must be `float`, got {type(fraction).__name__}"
        )
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(_checked(device), fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of the device's memory that the allocator may reserve, 0 to 1."""
    init()
    return float(_C.memory_fraction(_checked(device)))


def get_allocator_backend() -> str:
    """Always "native": the caching segment allocator."""
    return "native"


def _type(value: object) -> str:
    return type(value).__name__


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: Any = None) -> int:
    """Take ``size`` bytes of device memory and return their address, which no host may read.

    For ``caching_allocator_delete``; ``stream`` may be any stream of the device, since all share
    the pools.

    Raises:
        torch.OutOfMemoryError: there is no such block.
        TypeError: ``size`` is no int, or ``stream`` is neither None, a stream nor an int.
        ValueError: ``size`` is not above 0.
    """
    from torch_neuronx.neuron.streams import Stream

    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"expected size to be an int, the number of bytes, got {_type(size)}")
    if size <= 0:
        raise ValueError(f"expected a size above 0 bytes, got {size}")
    init()
    if stream is not None and not isinstance(stream, (int, Stream)):
        raise TypeError(
            "Invalid type for stream argument, must be `torch.neuron.Stream` or `int`, got "
            f"{_type(stream)}"
        )
    return int(_C.raw_alloc(size, _checked(device)))


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free what ``caching_allocator_alloc`` gave.

    Raises:
        RuntimeError: the address did not come from there, or was freed before.
        TypeError: ``mem_ptr`` is no int.
    """
    if isinstance(mem_ptr, bool) or not isinstance(mem_ptr, int):
        raise TypeError(f"expected mem_ptr to be an int, an address, got {_type(mem_ptr)}")
    if not 0 < mem_ptr < 1 << 64:
        raise RuntimeError(
            f"invalid device pointer: {mem_ptr:#x} (not from caching_allocator_alloc)"
        )
    _C.raw_delete(mem_ptr)


# -- Host memory ----------------------------------------------------------------------------------


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Statistics of pinned host memory, nested."""
    return dict(_C.host_memory_stats())


def host_memory_stats() -> MemoryStats:
    """Statistics of pinned host memory, with the keys of ``torch.cuda.host_memory_stats``."""
    return MemoryStats(host_memory_stats_as_nested_dict())


def reset_peak_host_memory_stats() -> None:
    """Set the peaks of pinned host memory to the current values."""
    _C.reset_peak_host_memory()


def reset_accumulated_host_memory_stats() -> None:
    """Set the historical totals of pinned host memory to zero."""
    _C.reset_accumulated_host_memory()


# -- History and snapshots ------------------------------------------------------------------------


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of `_snapshot`; all memory is in one private pool (0, 0)."""
    if mempool_id not in (None, (0, 0)):
        raise ValueError(f"expected mempool_id None or (0, 0), got {mempool_id}")
    return list(_C.memory_snapshot(False)["segments"])


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all", *args: Any, **kwargs: Any
) -> None:
    """Record stacks of allocations, and all allocations and frees, for `_snapshot`.

    Arguments are those of ``torch.cuda.memory._record_memory_history``. Off (``enabled=None``) it
    costs nothing; on, about two microseconds an allocation.

    Args:
        enabled: None turns it off; "state" keeps stacks of live memory; "all" the history, too.
        context: which stacks to keep: None, "state" (live memory), "alloc" (also of past
            allocations), "all" (also of frees).
        stacks: "python", or "all" for C++ frames, too (slow to turn into text).
        max_entries: the newest entries that are kept.
        clear_history: forget what was recorded before.
        skip_actions: names of actions that are not recorded.

    Raises:
        ValueError: an argument has none of the values above.
    """
    if isinstance(enabled, bool):  # the old signature: (enabled, record_context, ...)
        _record_memory_history_impl("all" if enabled else None, stacks="python")
        return
    _record_memory_history_impl(enabled, *args, **kwargs)


def _record_memory_history_impl(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    _C.record_memory(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


_record_memory_history.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _record_memory_history_impl
)


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The allocator's state and recorded history, as PyTorch's memory visualiser reads it.

    The structure is that of ``torch.cuda.memory._snapshot``; blocks of 1 MiB and more also carry
    ``origin``, the operator and Python line that made them, recorded or not.
    """
    snapshot: Any = _C.memory_snapshot(True)
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return dict(snapshot)


def _dump_snapshot(
    filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write `_snapshot` to a file that https://pytorch.org/memory_viz opens."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), file)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """The recorded stack of the live block that starts at ``data_ptr``; None without one."""
    frames = _C.allocation_traceback(data_ptr)
    return None if frames is None else list(frames)


def _set_memory_metadata(metadata: str) -> None:
    """Attach a text to all entries recorded from now on; "" ends it."""
    _C.set_memory_metadata(metadata)


def _get_memory_metadata() -> str:
    """The text that recorded entries get."""
    return str(_C.memory_metadata())


def _save_segment_usage(filename: str = "output.svg", snapshot: Any = None) -> None:
    """Write a flame graph of segments (needs PyTorch's flamegraph.pl, which it downloads)."""
    from torch.cuda import _memory_viz

    Path(filename).write_text(_memory_viz.segments(snapshot or _snapshot()))


def _save_memory_usage(filename: str = "output.svg", snapshot: Any = None) -> None:
    """Write a flame graph of memory (needs PyTorch's flamegraph.pl, which it downloads)."""
    from torch.cuda import _memory_viz

    Path(filename).write_text(_memory_viz.memory(snapshot or _snapshot()))
