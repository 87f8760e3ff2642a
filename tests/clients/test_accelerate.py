"""accelerate: a bf16 loop with accumulation, clipping, and state that is saved and restored;
compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_neuronx


def library() -> Any:
    """accelerate, imported by the tests that run and not when they are collected."""
    return pytest.importorskip("accelerate")


CLIENTS = ("accelerate",)
pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    yield
    library().state.AcceleratorState._reset_state(True)


def prepared(**options: Any) -> tuple[Any, nn.Module, Any, Any]:
    """Accelerator, model, optimizer and loader."""
    library().utils.set_seed(3)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    accelerator = library().Accelerator(mixed_precision="bf16", **options)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def epoch(accelerator: Any, model: nn.Module, optimizer: Any, loader: Any) -> list[float]:
    values = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        values.append(loss.item())
    return values


def test_the_accelerator_is_this_device() -> None:
    accelerator, model, *_ = prepared()
    assert accelerator.device.type == "neuron"
    assert next(model.parameters()).device.type == "neuron"
    x = torch.ones(1, 8, device=accelerator.device)
    assert model(x).dtype == torch.float32  # accelerate casts what the model returns
    with accelerator.autocast():
        assert model[0](x).dtype == torch.bfloat16


def test_loop_with_accumulation_and_clipping() -> None:
    torch_neuronx.clear_op_tracking()
    parts = prepared(gradient_accumulation_steps=2)
    first = epoch(*parts)
    for _ in range(14):
        last = epoch(*parts)
    assert sum(last) < 0.5 * sum(first)
    assert torch_neuronx.get_fallback_ops() == []


def test_the_compiled_model_learns_as_the_eager_one() -> None:
    def run(**options: Any) -> list[float]:
        library().state.AcceleratorState._reset_state(True)
        accelerator, model, optimizer, loader = prepared(**options)
        compiled = hasattr(model, "_orig_mod")
        assert compiled == ("dynamo_backend" in options)
        for part in (model._orig_mod if compiled else model).modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return epoch(accelerator, model, optimizer, loader)

    torch_neuronx.clear_op_tracking()
    compiled = run(dynamo_backend="neuron")
    assert torch_neuronx.get_fallback_ops() == []
    assert compiled == pytest.approx(run(), rel=2e-2)  # bf16


def test_a_restored_state_repeats_exactly(tmp_path: Path) -> None:
    accelerator, model, optimizer, loader = prepared()
    epoch(accelerator, model, optimizer, loader)
    accelerator.save_state(str(tmp_path))
    expected = epoch(accelerator, model, optimizer, loader)
    drawn = torch.rand(3, device=accelerator.device).tolist()
    accelerator.load_state(str(tmp_path))
    assert epoch(accelerator, model, optimizer, loader) == expected
    assert torch.rand(3, device=accelerator.device).tolist() == drawn


def test_batch_size_search_recognises_this_devices_errors() -> None:
    tried = []

    @library().utils.find_executable_batch_size(starting_batch_size=64)
    def run(batch_size: int) -> int:
        tried.append(batch_size)
        torch.empty(batch_size << 30, dtype=torch.uint8, device="neuron")  # GiB
        return batch_size

    assert run() <= 24 and tried[0] == 64
