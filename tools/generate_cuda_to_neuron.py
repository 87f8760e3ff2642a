"""Writes ``docs/cuda-to-neuron.md``: every public name of ``torch.cuda`` and what to write instead.

    python tools/generate_cuda_to_neuron.py > docs/cuda-to-neuron.md

Names come from torch; those that ``torch.neuron`` has are listed by themselves, the others need an
entry here. ``tests/neuron/test_names.py`` checks that nothing is missing, that no entry is stale
and that every name which the page recommends exists.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

_TYPES = "BFloat16 Bool Byte Char ComplexDouble ComplexFloat Double Float Half Int Long Short"


@dataclasses.dataclass(frozen=True)
class Absent:
    """Names that ``torch.neuron`` leaves out for one reason. ``instead``: what to write, with names
    of torch in backticks; it may say that there is nothing."""

    names: str
    reason: str
    instead: str


ABSENT = (
    Absent(
        " ".join(f"{t}Storage" for t in _TYPES.split()),
        "deprecated by torch in favour of dtype= and device=",
        "`torch.UntypedStorage` with `device='neuron'`",
    ),
    Absent("amp", "deprecated by torch in favour of torch.amp", "`torch.amp`"),
    Absent(
        "max_memory_cached",
        "deprecated by torch in favour of the names with reserved",
        "`torch.neuron.max_memory_reserved`",
    ),
    Absent(
        "memory_cached",
        "deprecated by torch in favour of the names with reserved",
        "`torch.neuron.memory_reserved`",
    ),
    Absent(
        "reset_max_memory_allocated reset_max_memory_cached",
        "deprecated by torch in favour of reset_peak_memory_stats",
        "`torch.neuron.reset_peak_memory_stats`",
    ),
    Absent("has_half", "deprecated by torch: always true", "nothing: float16 is there"),
    Absent(
        "CudaError DeferredCudaCallError check_error cudaStatus",
        "CUDA's own error codes",
        "`torch.AcceleratorError` and `torch.OutOfMemoryError` are what a failed call raises",
    ),
    Absent(
        "cudart current_blas_handle current_solver_handle gds get_gencode_flags has_magma",
        "handles and build flags of CUDA's own libraries",
        "nothing: there is no such library underneath",
    ),
    Absent(
        "sparse",
        "types of sparse tensors, from before there were dtypes",
        "`torch.sparse_coo_tensor` with `dtype=` and `device='neuron'`",
    ),
    Absent("nccl", "CUDA's own collectives", "`torch.distributed`"),
    Absent(
        "nvtx profiler",
        "CUDA's own tools",
        "`torch.profiler.profile` and `torch.profiler.record_function`",
    ),
    Absent("tunable", "CUDA's own matrix kernels", "nothing: the compiler chooses its kernels"),
    Absent("jiterator", "compiles CUDA C++", "`torch.compile` of a function on tensors"),
    Absent(
        "CUDAGraph graph graph_pool_handle graphs is_current_stream_capturing "
        "make_graphed_callables",
        "graphs are torch.compile's here: a graph is one executable",
        "`torch.compile` with `backend='neuron'`",
    ),
    Absent(
        "CUDAPluggableAllocator MemPool caching_allocator_disabled caching_allocator_enable "
        "change_current_allocator use_mem_pool",
        "the arena is the only allocator: addresses come from a model of the device (D5, D7)",
        "nothing; `torch.neuron.memory_snapshot` shows what it holds",
    ),
    Absent(
        "ExternalStream GreenContext get_stream_from_external green_contexts",
        "streams are ours: PJRT has none that could be handed in or divided",
        "`torch.neuron.Stream`",
    ),
    Absent(
        "clock_rate power_draw temperature utilization memory_usage",
        "a PJRT plugin has no sensors",
        "nothing",
    ),
    Absent(
        "device_memory_used list_gpu_processes",
        "a PJRT plugin lists no other processes",
        "`torch.neuron.mem_get_info` and `torch.neuron.memory_allocated` know this process",
    ),
)
LEFT_OUT = {name: entry for entry in ABSENT for name in entry.names.split()}

# What stands outside of torch.cuda: what one writes on CUDA, what on this device.
AROUND = (
    ('`torch.device("cuda")`, `"cuda:1"`', '`torch.device("neuron")`, `"neuron:1"`'),
    ("`tensor.cuda()`, `module.cuda()`", '`.neuron()`, or `.to("neuron")`'),
    ("`tensor.is_cuda`", '`tensor.is_neuron`, or `tensor.device.type == "neuron"`'),
    ("`torch.cuda.FloatTensor` and its kin", "`torch.neuron.FloatTensor` and its kin"),
    ('`torch.autocast("cuda")`, `torch.cuda.amp.autocast()`', '`torch.autocast("neuron")`'),
    ('`torch.amp.GradScaler("cuda")`', '`torch.amp.GradScaler("neuron")`'),
    ('`torch.Generator("cuda")`', '`torch.Generator("neuron")`'),
    ("`torch.compile(f)`", '`torch.compile(f, backend="neuron")`'),
    ("`torch.cuda.is_available()` where any accelerator will do", "`torch.accelerator`"),
    ("`torch.backends.cuda`, `torch.backends.cudnn`", "nothing: there are no such libraries"),
    (
        "`torch.backends.cuda.sdp_kernel`",
        "nothing: `torch.nn.functional.scaled_dot_product_attention` is one operator",
    ),
    ("`CUDA_VISIBLE_DEVICES`", "`NEURON_RT_VISIBLE_CORES` ([environment](environment.md))"),
    ("`CUDA_LAUNCH_BLOCKING=1`", "`NEURON_LAUNCH_BLOCKING=1`"),
    ("`PYTORCH_CUDA_ALLOC_CONF`", "nothing"),
)
SUBMODULE_NOTES = {
    "comm": "`torch.distributed`; copies between devices are `tensor.to`",
}

HEAD = """\
# From torch.cuda to torch.neuron

Every public name of `torch.cuda` in torch {version}, and what to write instead. Written by
`python tools/generate_cuda_to_neuron.py`, never by hand.

## Around it

| On CUDA | On this device |
|---|---|
{around}

## The same name

{same} of {all} names of `torch.cuda` are there as `torch.neuron.NAME`, functions with the same
parameters:

{names}

So are those of `torch.cuda.memory` and `torch.cuda.random`, as `torch.neuron.memory` and
`torch.neuron.random`, but for what the next table leaves out.

## Another name, or none

| torch.cuda. | Instead | Why |
|---|---|---|
{absent}
"""


def public(module: ModuleType) -> set[str]:
    """The public names of a module: those that it lists, and what else it defines."""
    return set(getattr(module, "__all__", ())) | {
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", "") == module.__name__
    }


def submodules() -> list[str]:
    """The public submodules of torch.cuda."""
    import torch

    return [m.name for m in pkgutil.iter_modules(torch.cuda.__path__) if m.name[0] != "_"]


def names() -> list[str]:
    """Public names of torch.cuda, and of its submodules; an object is not repeated there."""
    import torch

    found = set(torch.cuda.__all__)
    for part in submodules():
        module = importlib.import_module(f"torch.cuda.{part}")
        for name in public(module):
            if getattr(torch.cuda, name, None) is not getattr(module, name):
                found.add(f"{part}.{name}")
    return sorted(found)


def present(name: str) -> bool:
    """Whether torch.neuron has a name, dotted for a submodule's."""
    import torch

    target = torch.neuron
    for part in name.split("."):
        if not hasattr(target, part):
            return False
        target = getattr(target, part)
    return True


def left_out(name: str) -> Absent | None:
    """Why a name is not there; a submodule's entry holds for its names."""
    part = name.partition(".")[0]
    if "." in name and part in SUBMODULE_NOTES:
        return Absent(part, "collectives of one process over CUDA devices", SUBMODULE_NOTES[part])
    return LEFT_OUT.get(name) or LEFT_OUT.get(part)


def rows() -> Iterator[str]:
    """Rows of names that are not there, those of one reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names():
        if not present(name):
            entry = left_out(name)
            if entry is None:
                raise SystemExit(
                    f"torch.cuda.{name} is neither on torch.neuron nor in ABSENT: add an entry "
                    "that says what to write instead"
                )
            groups.setdefault((entry.instead, entry.reason), []).append(f"`{name}`")
    for (instead, reason), found in groups.items():
        yield f"| {', '.join(found)} | {instead} | {reason} |"


def page() -> str:
    """``docs/cuda-to-neuron.md``."""
    import torch

    same = [n for n in torch.cuda.__all__ if present(n)]
    return HEAD.format(
        version=torch.__version__.partition("+")[0],
        around="\n".join(f"| {cuda} | {neuron} |" for cuda, neuron in AROUND),
        same=len(same),
        all=len(torch.cuda.__all__),
        names=", ".join(f"`{n}`" for n in sorted(same)),
        absent="\n".join(rows()),
    )


if __name__ == "__main__":
    print(page(), end="")
