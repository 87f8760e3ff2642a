"""An operator with neither a rule nor a CPU kernel: refused, and never said to have run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_neuronx
from torch_neuronx import _C, config

Call = Callable[[], object]


@torch.library.custom_op("unsupported::elsewhere", mutates_args=(), device_types="cuda")
def elsewhere(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("this kernel is another device's")


@torch.library.custom_op("unsupported::everywhere", mutates_args=())
def everywhere(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("unsupported::on_cpu", mutates_args=(), device_types="cpu")
def on_cpu(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _dense() -> torch.Tensor:
    return torch.arange(6.0, device="neuron").reshape(2, 3)


def _sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse().to("neuron")


CALLS: dict[str, tuple[str, Call]] = {
    "of sparse tensors only": ("aten::native_norm", lambda: torch.native_norm(_dense())),
    "of another device": ("aten::_fused_dropout", lambda: torch._fused_dropout(_dense(), 0.5)),
    "of another device, three results": (
        "aten::batch_norm_stats",
        lambda: torch.batch_norm_stats(_dense(), 1e-5),
    ),
    "dense tensors only": ("aten::exp", lambda: _sparse().exp()),
    "view of a sparse tensor": ("aten::view", lambda: _sparse().view(9)),
    "custom, of another device": ("unsupported::elsewhere", lambda: elsewhere(_dense())),
    "quantized result": (
        "aten::quantize_per_tensor",
        lambda: torch.quantize_per_tensor(_dense(), 0.1, 0, torch.qint8),
    ),
    "compressed sparse": (
        "aten::sparse_sampled_addmm",
        lambda: torch.sparse.sampled_addmm(
            torch.eye(3).to_sparse_csr().to("neuron"), torch.eye(3).neuron(), torch.eye(3).neuron()
        ),
    ),
}


@pytest.fixture(params=["warn", "allow", "error"])
def policy(request: pytest.FixtureRequest) -> Iterator[str]:
    torch_neuronx.clear_op_tracking()
    with config.override({"TORCH_NEURONX_FALLBACK": request.param}):
        yield request.param
    torch_neuronx.clear_op_tracking()


@pytest.mark.parametrize("name", CALLS)
def test_refused_uncounted_without_a_warning(name: str, policy: str) -> None:
    overload, call = CALLS[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs on the CPU.*")
        with pytest.raises(NotImplementedError, match=overload) as raised:
            call()
    # Not FallbackError, whose advice is another policy.
    assert type(raised.value) is NotImplementedError
    assert torch_neuronx.get_fallback_ops() == []
    assert torch_neuronx.fallback_table().count("\n") == 0


def test_the_error_says_what_is_missing_and_what_to_do() -> None:
    with pytest.raises(NotImplementedError) as raised:
        torch.native_norm(_dense())
    text = str(raised.value)
    assert "neither a lowering rule for the neuron device nor a kernel" in text
    assert "dispatch key CPU" in text
    assert "PrivateUse1" in text
    with pytest.raises(NotImplementedError, match="dispatch key SparseCPU"):
        _sparse().exp()


def test_a_kernel_for_cpu_runs_and_is_counted() -> None:
    torch_neuronx.clear_op_tracking()
    with pytest.warns(UserWarning, match=r"on_cpu.*runs on the CPU"):
        result = on_cpu(_dense())
    assert torch.equal(result.cpu(), _dense().cpu() + 1)
    assert torch_neuronx.get_fallback_ops() == ["unsupported::on_cpu"]
    torch_neuronx.clear_op_tracking()
    assert torch.equal(everywhere(_dense()).cpu(), _dense().cpu() + 1)
    assert torch_neuronx.get_fallback_ops() == []


# PyTorch's one kernel for every device reads host memory.
HOST_MEMORY: dict[str, Callable[[str], object]] = {
    "_sobol_engine_draw": lambda d: torch.ops.aten._sobol_engine_draw(
        torch.zeros(3, dtype=torch.int64, device=d),
        2,
        torch.arange(90, device=d).reshape(3, 30),
        3,
        0,
        torch.float32,
    ),
    "_sobol_engine_ff_": lambda d: torch.ops.aten._sobol_engine_ff_(
        torch.zeros(3, dtype=torch.int64, device=d),
        2,
        torch.arange(90, device=d).reshape(3, 30),
        3,
        0,
    ),
    "_sobol_engine_initialize_state_": lambda d: torch.ops.aten._sobol_engine_initialize_state_(
        torch.zeros(3, 30, dtype=torch.int64, device=d), 3
    ),
    "_sobol_engine_scramble_": lambda d: torch.ops.aten._sobol_engine_scramble_(
        torch.arange(90, device=d).reshape(3, 30),
        torch.ones(3, 30, 30, dtype=torch.int64, device=d).tril(),
        3,
    ),
    "_saturate_weight_to_fp16": lambda d: torch.ops.aten._saturate_weight_to_fp16(
        torch.tensor([[1.0, 1e6]], device=d)
    ),
    "choose_qparams_optimized": lambda d: torch.choose_qparams_optimized(
        torch.arange(24.0, device=d), 24, 10, 0.1, 8
    ),
    "_grid_sampler_2d_cpu_fallback": lambda d: torch.ops.aten._grid_sampler_2d_cpu_fallback(
        torch.arange(9.0, device=d).reshape(1, 1, 3, 3),
        torch.full((1, 2, 2, 2), 0.25, device=d),
        0,
        0,
        False,
    ),
}


@pytest.mark.parametrize("name", HOST_MEMORY)
def test_kernels_that_read_host_memory_run_on_the_cpu_and_are_counted(name: str) -> None:
    torch_neuronx.clear_op_tracking()
    with config.override({"TORCH_NEURONX_FALLBACK": "allow"}):
        result = HOST_MEMORY[name]("neuron")
    assert torch_neuronx.get_fallback_ops() == [f"aten::{name}"]
    torch_neuronx.clear_op_tracking()
    torch.testing.assert_close(result, HOST_MEMORY[name]("cpu"), check_device=False)


def test_the_table_of_operators_says_the_same() -> None:
    path = Path(torch_neuronx.__file__).with_name("compatibility.json")
    rows = {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    for overload, _ in CALLS.values():
        if overload in rows and overload not in ("aten::exp", "aten::view", "aten::native_norm"):
            assert rows[overload]["status"] == "unsupported"
    for row in rows.values():
        for overload, how in row["overloads"].items():
            if how in ("fallback", "unsupported"):
                assert _C.has_fallback(overload) == (how == "fallback"), overload
