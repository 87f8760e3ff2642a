"""Every public name of ``torch.cuda``: on ``torch.neuron`` with its signature, or left out for a
reason given in tools/generate_cuda_to_neuron.py; and every name that TorchNeuron, torch and client
libraries ask for.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_neuronx

ROOT = Path(__file__).resolve().parents[2]


def page_tool() -> ModuleType:
    """tools/generate_cuda_to_neuron.py, which has the names that are left out and why."""
    path = ROOT / "tools" / "generate_cuda_to_neuron.py"
    spec = importlib.util.spec_from_file_location("generate_cuda_to_neuron", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TOOL = page_tool()
LEFT_OUT = TOOL.LEFT_OUT

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


def test_the_page_walks_every_public_submodule() -> None:
    page = TOOL.page()
    for info in pkgutil.iter_modules(torch.cuda.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"torch.cuda.{info.name}")
        for name, value in vars(module).items():
            own = getattr(value, "__module__", "") == module.__name__ and name[0] != "_"
            if own and info.name not in ("memory", "random"):  # there under the same names
                assert f"`{name}`" in page or f"`{info.name}.{name}`" in page, info.name


def test_the_page_from_cuda_to_neuron_is_fresh() -> None:
    assert (ROOT / "docs" / "cuda-to-neuron.md").read_text() == TOOL.page()


def test_a_name_without_an_entry_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "__all__", [*torch.cuda.__all__, "brand_new"])
    with pytest.raises(SystemExit, match=r"torch\.cuda\.brand_new .* what to write instead"):
        TOOL.page()


def test_every_name_that_the_page_recommends_exists() -> None:
    text = " ".join([*(e.instead for e in TOOL.ABSENT), *(neuron for _, neuron in TOOL.AROUND)])
    recommended = re.findall(r"torch(?:\.\w+)+", text)
    assert len(recommended) > 20
    for name in recommended:
        target: Any = torch
        for part in name.split(".")[1:]:
            assert hasattr(target, part), name
            target = getattr(target, part)
    for name in ("neuron", "is_neuron"):
        assert f"`.{name}()`" in text or f"tensor.{name}" in text
        assert hasattr(torch.Tensor, name)
    assert hasattr(torch.nn.Module, "neuron")


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
