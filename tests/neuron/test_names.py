"""Every public name of ``torch.cuda``: on ``torch.neuron`` with its signature, or left out for a
reason given here; and every name that TorchNeuron, torch and client libraries ask for.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch

import torch_neuronx

_TYPES = "BFloat16 Bool Byte Char ComplexDouble ComplexFloat Double Float Half Int Long Short"

# Names of torch.cuda that torch.neuron leaves out, by reason.
ABSENT: dict[str, str] = {
    "deprecated by torch in favour of dtype= and device=": " ".join(
        f"{t}Storage" for t in _TYPES.split()
    ),
    "deprecated by torch in favour of torch.amp": "amp",
    "deprecated by torch in favour of the names with reserved, and reset_peak_memory_stats": (
        "max_memory_cached memory_cached reset_max_memory_allocated reset_max_memory_cached"
    ),
    "deprecated by torch: always true": "has_half",
    "CUDA's own libraries and error codes": (
        "CudaError DeferredCudaCallError check_error cudaStatus cudart current_blas_handle "
        "current_solver_handle gds get_gencode_flags has_magma jiterator nccl nvtx profiler "
        "sparse tunable"
    ),
    "graphs are torch.compile's here: a graph is one executable": (
        "CUDAGraph graph graph_pool_handle graphs is_current_stream_capturing "
        "make_graphed_callables"
    ),
    "the arena is the only allocator: addresses come from a model of the device (D5, D7)": (
        "CUDAPluggableAllocator MemPool caching_allocator_disabled caching_allocator_enable "
        "change_current_allocator use_mem_pool"
    ),
    "streams are ours: PJRT has none that could be handed in or divided": (
        "ExternalStream GreenContext get_stream_from_external green_contexts"
    ),
    "a PJRT plugin has no sensors and lists no other processes": (
        "clock_rate device_memory_used list_gpu_processes memory_usage power_draw temperature "
        "utilization"
    ),
}
LEFT_OUT = {name: reason for reason, names in ABSENT.items() for name in names.split()}

# What torch itself looks up on a device module (autograd, AMP, checkpointing, loading, DDP, FSDP,
# DTensor, Dynamo) and what client libraries call.
LOOKED_UP = """is_available device_count current_device set_device is_initialized init _lazy_init
    _initialized _is_in_bad_fork manual_seed manual_seed_all seed seed_all initial_seed
    get_rng_state set_rng_state get_rng_state_all set_rng_state_all default_generators
    _get_generator _get_rng_state_offset _set_rng_state_offset _exchange_device
    _maybe_exchange_device synchronize Stream Event stream current_stream default_stream set_stream
    device device_of get_device_properties get_device_name get_device_capability memory_allocated
    max_memory_allocated memory_reserved max_memory_reserved memory_stats empty_cache mem_get_info
    reset_peak_memory_stats get_amp_supported_dtype is_bf16_supported memory random streams"""


def test_every_name_of_torch_cuda_is_there_or_left_out_for_a_reason() -> None:
    names = set(torch.cuda.__all__)
    missing = sorted(n for n in names if not hasattr(torch.neuron, n) and n not in LEFT_OUT)
    assert missing == []
    assert sorted(n for n in LEFT_OUT if hasattr(torch.neuron, n)) == []
    assert sorted(n for n in LEFT_OUT if not hasattr(torch.cuda, n)) == []


def test_names_that_others_look_up() -> None:
    assert [n for n in LOOKED_UP.split() if not hasattr(torch.neuron, n)] == []


def test_the_list_of_public_names_is_true() -> None:
    assert [n for n in torch.neuron.__all__ if not hasattr(torch.neuron, n)] == []
    assert torch.neuron.__all__ == sorted(torch.neuron.__all__)


def test_public_names_are_documented() -> None:
    undocumented = [
        n
        for n in torch.neuron.__all__
        if (
            inspect.isfunction(getattr(torch.neuron, n))
            or inspect.isclass(getattr(torch.neuron, n))
        )
        and not inspect.getdoc(getattr(torch.neuron, n))
    ]
    assert undocumented == []


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and defaults of the parameters; a default device counts as one, whatever its name."""
    return [
        (p.name, str(p.default).replace("cuda", "neuron"))
        for p in inspect.signature(function).parameters.values()
    ]


SHARED_FUNCTIONS = [
    n
    for n in torch.neuron.__all__
    if hasattr(torch.cuda, n) and inspect.isfunction(getattr(torch.neuron, n))
]


@pytest.mark.parametrize("name", SHARED_FUNCTIONS)
def test_functions_have_cudas_signature(name: str) -> None:
    ours, theirs = getattr(torch.neuron, name), getattr(torch.cuda, name)
    assert parameters(ours)[: len(parameters(theirs))] == parameters(theirs)


def test_the_walk_covers_most_of_the_module() -> None:
    assert len(SHARED_FUNCTIONS) >= 49


def test_torch_neuronx_has_the_names_too() -> None:
    for name in torch.neuron.__all__:
        assert getattr(torch_neuronx, name) is getattr(torch.neuron, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
        torch_neuronx.nothing_like_it  # noqa: B018


@pytest.mark.parametrize("part", ["memory", "random", "streams"])
def test_parts_are_one_module_under_both_names(part: str) -> None:
    assert importlib.import_module(f"torch.neuron.{part}") is getattr(torch.neuron, part)


ACCELERATOR_LEFT_OUT = {
    "Graph": "torch refuses it for this device type: graphs are torch.compile's here",
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torch_accelerator_is_complete() -> None:
    calls: dict[str, tuple[Any, ...]] = {
        "device_index": (0,),
        "set_device_idx": (0,),
        "set_device_index": (0,),
        "set_stream": (torch.accelerator.current_stream(),),
    }
    for name in torch.accelerator.__all__:
        if name in ACCELERATOR_LEFT_OUT:
            with pytest.raises(RuntimeError, match="not supported on device type"):
                getattr(torch.accelerator, name)()
        else:
            getattr(torch.accelerator, name)(*calls.get(name, ()))


def test_accelerator_capability_lists_the_dtypes_that_can_be_allocated() -> None:
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    for name in dir(torch):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype) and dtype in supported:
            assert torch.empty(2, dtype=dtype, device="neuron").dtype == dtype
    assert {torch.bool, torch.int64, torch.bfloat16, torch.float64, torch.complex128} <= supported
    assert not supported & {torch.complex32, torch.qint8}


def test_typed_tensors_are_names_of_a_dtype() -> None:
    x = torch.neuron.FloatTensor([1, 2])
    assert x.type() == "torch.neuron.FloatTensor" and x.tolist() == [1, 2]
    assert torch.neuron.LongTensor(2, 3).shape == (2, 3)
    assert torch.neuron.BoolTensor(torch.Size([4])).dtype == torch.bool
    assert torch.neuron.HalfTensor().numel() == 0
    assert isinstance(x, torch.neuron.FloatTensor) and not isinstance(x, torch.neuron.LongTensor)
    assert not isinstance(torch.ones(1), torch.neuron.FloatTensor)
    assert torch.neuron.FloatTensor(x).data_ptr() == x.data_ptr()
    for source in (x, x.cpu()):
        moved = source.type(torch.neuron.LongTensor)
        assert moved.type() == "torch.neuron.LongTensor" and moved.tolist() == [1, 2]
    layer = torch.nn.Linear(2, 2).type(torch.neuron.BFloat16Tensor)
    assert layer.weight.type() == "torch.neuron.BFloat16Tensor"
    with pytest.raises(TypeError, match=r"expected torch\.neuron\.FloatTensor .*convert it"):
        torch.neuron.FloatTensor(torch.ones(2))
