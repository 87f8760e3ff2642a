"""Modules, optimizers, saving and loading."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regressions.both import same_on_both
from support import assert_same


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_tied_weights_stay_tied() -> None:
    model = Tied().to("neuron")
    assert model.head.weight is model.embed.weight and len(list(model.parameters())) == 1
    ids = torch.arange(10, device="neuron").reshape(2, 5)
    loss_of(model, ids).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert torch.equal(model.head.weight, model.embed.weight)
    assert model.head.weight.data_ptr() == model.embed.weight.data_ptr() != 0
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight
    assert twin.head.weight.data_ptr() != model.head.weight.data_ptr()


def test_a_tied_model_is_the_same_after_a_round_trip() -> None:
    model = Tied().to("neuron")
    ids = torch.arange(10, device="neuron").reshape(2, 5)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where in ("cpu", "neuron"):
        file.seek(0)
        other = Tied().to("neuron")
        other.load_state_dict(torch.load(file, map_location=where))
        assert other.head.weight is other.embed.weight
        assert loss_of(other, ids).item() == loss_of(model, ids).item()


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.5, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.05, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.05, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.05, **k),
    "Rprop": lambda p, **k: torch.optim.Rprop(p, lr=0.05, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.05, **k),
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in OPTIMIZERS for how in ("foreach", "forloop")]
    + [(name, "fused") for name in FUSED],
)
def test_optimizers_move_transposed_parameters(name: str, how: str) -> None:
    def case(device: str) -> list[torch.Tensor]:
        target = torch.linspace(-1, 1, 6, device=device).reshape(3, 2)
        dense = torch.zeros(3, 2, device=device, requires_grad=True)
        transposed = torch.zeros(2, 3, device=device).t().requires_grad_()
        keywords = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
        optimizer = OPTIMIZERS[name]([dense, transposed], **keywords)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = sum(((p - target) ** 2).sum() for p in (dense, transposed))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [torch.stack(losses), dense.detach(), transposed.detach()]

    losses, dense, transposed = same_on_both(case, scale=5)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(dense, transposed)


def test_reading_the_loss_changes_nothing() -> None:
    def train(every: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to("neuron")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.randn(6, 4, device="neuron")
        for step in range(10):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if step % every == 0:
                assert loss.item() == loss.item()  # not NaN
        return model[0].weight.detach()

    never, each, some = train(100), train(1), train(5)
    assert torch.equal(never, each) and torch.equal(never, some)


# -- Saving, loading, pickling, data loading ------------------------------------------------------


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
def test_loading_straight_to_the_device(tmp_path: Path, weights_only: bool, mmap: bool) -> None:
    tensors = {f"small{i}": torch.full((3,), float(i)) for i in range(30)}
    tensors["large"] = torch.arange(1 << 19, dtype=torch.float32)  # 2 MiB
    torch.save(tensors, tmp_path / "t.pt")
    loaded = torch.load(
        tmp_path / "t.pt", map_location="neuron", mmap=mmap, weights_only=weights_only
    )
    for name, value in tensors.items():
        assert_same(loaded[name], value, where=name)


def test_a_device_object_in_a_checkpoint() -> None:
    file = io.BytesIO()
    torch.save({"device": torch.device("neuron:0"), "x": torch.ones(1, device="neuron")}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu")
    assert loaded["device"] == torch.device("neuron:0") and loaded["x"].device.type == "cpu"
    assert pickle.loads(pickle.dumps(torch.device("neuron"))) == torch.device("neuron")


def test_location_tags_keep_the_index() -> None:
    storage = torch.ones(1, device="neuron").untyped_storage()
    assert torch.serialization.location_tag(storage) == "neuron:0"
    host = torch.ones(1).untyped_storage()
    for tag in ("neuron", "neuron:0"):
        assert torch.serialization.default_restore_location(host, tag).device.type == "neuron"
    with pytest.raises(RuntimeError, match=r"neuron device 1|device_count"):
        torch.serialization.default_restore_location(host, "neuron:1")


def test_untyped_storages() -> None:
    x = torch.arange(6.0, device="neuron")
    storage = x.untyped_storage()
    file = io.BytesIO()
    torch.save(storage, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device == torch.device("neuron:0") and loaded.nbytes() == 24
    twin = copy.deepcopy(storage)
    assert twin.data_ptr() != storage.data_ptr()
    twin.copy_(torch.ones(6).untyped_storage())
    view = torch.empty(0, device="neuron").set_(twin)
    assert_same(view[:6].clone(), torch.ones(6))
    twin.resize_(48)
    assert twin.nbytes() == 48
    assert_same(x, torch.arange(6.0))


def test_batches_from_worker_processes_and_pinned_memory() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    total = torch.zeros(2, device="neuron")
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to("neuron", non_blocking=True).sum(0)
    assert_same(total, torch.tensor([30.0, 36.0]))


def test_modules_move_with_their_optimizer() -> None:
    """As on CUDA, ``to`` keeps the parameters: an optimizer made before it goes on training."""

    def case(device: str) -> Any:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model.to(device)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2, device=device)).sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    same_on_both(case)
