"""Optimizers on the device: five steps of each form equal five steps on CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from support import assert_same, no_fallback

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (
        torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}  # fmt: skip
FORMS: dict[str, dict[str, bool]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def train(model: torch.nn.Module, optimizer: Any, device: str, steps: int = 5) -> list[float]:
    x = torch.linspace(-1, 1, 20).reshape(4, 5).to(device)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - 0.1 * step).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_five_steps_equal_cpu(kind: str, form: str) -> None:
    create, options = KINDS[kind]
    on_cpu = model()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    optimizers = [
        create(m.parameters(), **options, **(FORMS[form] if m is on_device else {"foreach": False}))
        for m in (on_cpu, on_device)
    ]
    expected = train(on_cpu, optimizers[0], "cpu")
    with no_fallback():
        losses = train(on_device, optimizers[1], "neuron")
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for (name, p), q in zip(on_cpu.named_parameters(), on_device.parameters(), strict=True):
        # Adam divides by sqrt(v) + eps: where v is tiny, rounding of the gradient is enlarged.
        assert_same(q, p, scale=10, where=name)
        state, other = optimizers[0].state[p], optimizers[1].state[q]
        assert state.keys() == other.keys()
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                assert_same(other[key], value, scale=10, where=f"{name}.{key}")
            elif value is not None:
                assert float(other[key]) == float(value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_transposed_parameters_are_trained(kind: Any, form: str) -> None:
    start = torch.arange(12.0).reshape(3, 4) / 12
    weights = []
    for device in ("cpu", "neuron"):
        weight = torch.nn.Parameter(start.clone().to(device).t())
        assert not weight.is_contiguous()
        options = FORMS[form] if device == "neuron" else {"foreach": False}
        optimizer = kind([weight], lr=0.1, **options)
        for _ in range(2):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        weights.append(weight)
    assert_same(weights[1], weights[0], scale=10)
    assert weights[1].square().sum().item() < start.square().sum().item()


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_gradients(foreach: bool) -> None:
    on_cpu = model()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    norms = []
    for m, device in ((on_cpu, "cpu"), (on_device, "neuron")):
        (m(torch.ones(2, 5, device=device)) * 100).square().sum().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0, foreach=foreach))
    assert_same(norms[1], norms[0], scale=10)
    for p, q in zip(on_cpu.parameters(), on_device.parameters(), strict=True):
        assert_same(q.grad, p.grad, scale=10)


def test_how_often_the_loss_is_read_changes_nothing() -> None:
    start = model().to("neuron")
    ends = []
    for every in (1, 5, 100):
        twin = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01)
        x = torch.ones(4, 5, device="neuron")
        for step in range(10):
            optimizer.zero_grad()
            loss = twin(x).square().mean()
            loss.backward()
            optimizer.step()
            if step % every == 0:
                loss.item()
        ends.append([p.detach().cpu() for p in twin.parameters()])
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


def test_gradient_scaling_with_autocast() -> None:
    m = model().to("neuron")
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("neuron", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        with torch.autocast("neuron", dtype=torch.float16):
            y = m(torch.ones(2, 5, device="neuron"))
            assert y.dtype == torch.float16
        loss = y.float().square().mean() * (float("inf") if step == 1 else 1.0)
        before = m[0].weight.detach().cpu().clone()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved = not torch.equal(before, m[0].weight.detach().cpu())
        assert moved == (step != 1), step
    # Halved by the infinite loss, doubled after two good steps.
    assert scales == [1024.0, 512.0, 512.0, 1024.0, 1024.0]
