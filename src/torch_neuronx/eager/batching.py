"""Compiles cold misses together (decision D12).

C++ finds runs of launches whose kernels nobody compiles yet (csrc/runtime/batches.h) and asks here
for one kernel for each run. A program that comes again is cut at the same places, so its runs
are known. Kernels that keep coming in runs that are not are compiled by themselves, too, one at a
time and when nothing else is under way: so a program whose runs are always others does not compile
for ever.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from torch_neuronx import _C
from torch_neuronx.compiler import deferred, progress
from torch_neuronx.eager import fusing

_MOST_KERNELS = 512  # of runs that are remembered
_TIMES = 3  # that a kernel is in a new run before it is compiled by itself

_lock = threading.Lock()
_known: collections.OrderedDict[bytes, _C.Kernel] = collections.OrderedDict()
_times: collections.Counter[int] = collections.Counter()  # by kernel
_later: list[_C.Kernel] = []
_under_way: set[bytes] = set()  # runs


def batch(request: dict[str, Any], cold: list[_C.Kernel]) -> _C.Kernel | None:
    """The kernel of a run; None if it cannot be made. ``request`` as ``fusing.fuse`` has it;
    ``cold`` are the deferred kernels among its launches."""
    key = fusing.key_of(request)
    with _lock:
        known = _known.get(key)
        if known is not None:
            _known.move_to_end(key)
            return known
        _under_way.add(key)
        for kernel in {k.identity: k for k in cold}.values():
            _times[kernel.identity] += 1
            if _times[kernel.identity] == _TIMES:
                _later.append(kernel)
    try:
        kernel = fusing.fuse(request, key, lambda: _over(key))
    except Exception as error:
        progress.say(f"torchneuron: a run is not compiled as one: {error!r}", level=1)
        _over(key)
        return None
    with _lock:
        _known[key] = kernel
        while len(_known) > _MOST_KERNELS:
            _known.popitem(last=False)
    return kernel


def _over(key: bytes) -> None:
    with _lock:
        _under_way.discard(key)
    _start_later()


def _start_later() -> None:
    """Begin one of the kernels that later launches may want, if no launch waits for a run."""
    with _lock:
        if _under_way or not _later:
            return
        kernel = _later.pop()
    deferred.start_alone([kernel], _start_later)
