"""torch.optim as training loops use it: every scheduler, averaged weights, clipping, states saved
on one device and loaded on the other. Every optimizer in each of its forms is tested with PyTorch's
own database in tests/suites/test_optim_db.py."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

from clients.common import numbers
from support import assert_same, no_fallback

CLIENTS = ("torch",)
pytestmark = pytest.mark.clients

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda e: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.3, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4, 2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05, anneal_epochs=2),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(6, 16, bias=False)  # its gradient would be zero but for rounding
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> torch.Tensor:
    """One step; the loss."""
    device = next(model.parameters()).device
    loss = model(numbers(8, 6, seed=seed).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def assert_same_state(got: nn.Module, want: nn.Module) -> None:
    for name, value in want.state_dict().items():
        assert_same(got.state_dict()[name], value, scale=10, where=name)


@pytest.mark.parametrize("tensor_rate", [False, True], ids=["number", "rate on the device"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, tensor_rate: bool) -> None:
    def run(device: str) -> tuple[nn.Module, list[float]]:
        model = network().to(device)
        rate: Any = torch.tensor(0.05, device=device) if tensor_rate else 0.05
        # A rate that is a tensor needs the form that leaves it on the device.
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=tensor_rate)
        scheduler = SCHEDULERS[name](optimizer)
        rates = []
        for seed in range(5):
            loss = step(model, optimizer, seed)
            scheduler.step(*([loss] if name == "ReduceLROnPlateau" else []))
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return model, rates

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with no_fallback():
            got, rates = run("neuron")
        want, expected = run_on_cpu(run, tensor_rate)
    assert rates == pytest.approx(expected, rel=1e-5)
    assert_same_state(got, want)


def run_on_cpu(run: Callable[[str], Any], tensor_rate: bool) -> Any:
    if tensor_rate:  # capturable is for accelerators: CPU's plain form does the same
        original = torch.optim.Adam
        plain = lambda p, lr, capturable: original(p, lr=lr, foreach=False)  # noqa: E731
        torch.optim.Adam = plain  # type: ignore[assignment, misc]
        try:
            return run("cpu")
        finally:
            torch.optim.Adam = original  # type: ignore[misc]
    return run("cpu")


@pytest.mark.parametrize("kind", ["mean", "exponential", "exponential with buffers"])
def test_averaged_weights(kind: str) -> None:
    def run(device: str) -> tuple[nn.Module, nn.Module]:
        model = network().to(device)
        function = None if kind == "mean" else swa_utils.get_ema_multi_avg_fn(0.8)
        average = swa_utils.AveragedModel(
            model, device, multi_avg_fn=function, use_buffers=kind.endswith("buffers")
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for seed in range(3):
            step(model, optimizer, seed)
            average.update_parameters(model)
        if not kind.endswith("buffers"):
            swa_utils.update_bn([numbers(8, 6, seed=s).to(device) for s in (7, 8)], average)
        return model, average

    with no_fallback():
        got = run("neuron")
    want = run("cpu")
    assert_same_state(got[0], want[0])
    assert_same_state(got[1], want[1])


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"])
def test_states_move_between_devices(optimizer: str) -> None:
    """Saved on the device, loaded on the CPU, and back."""

    def made(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network().to(device)
        return model, getattr(torch.optim, optimizer)(model.parameters(), lr=0.02)

    cpu_model, cpu_optimizer = made("cpu")
    model, opt = made("neuron")
    for seed in range(2):
        step(cpu_model, cpu_optimizer, seed)
        step(model, opt, seed)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, map_location="cpu")
    for device in ("cpu", "neuron"):
        again, again_opt = made(device)
        again.load_state_dict(state["model"])
        again_opt.load_state_dict(copy.deepcopy(state["optimizer"]))
        step(again, again_opt, 5)
        if device == "cpu":
            step(cpu_model, cpu_optimizer, 5)
            for name, value in cpu_model.state_dict().items():
                torch.testing.assert_close(
                    again.state_dict()[name], value, rtol=2e-4, atol=2e-4, msg=name
                )
        else:
            assert_same_state(again, cpu_model)


def test_lbfgs_follows_its_closure() -> None:
    def run(device: str) -> list[float]:
        model = network().to(device)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn="strong_wolfe")
        x, losses = numbers(8, 6).to(device), []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - 1).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)
        return losses[:6]

    with no_fallback():
        got = run("neuron")
    assert got == pytest.approx(run("cpu"), rel=1e-3)


def test_a_whole_step_compiles() -> None:
    """Forward, backward and the optimizer, each one graph; no recompilation from the rate."""

    def run(device: str, compiled: bool) -> nn.Module:
        model = network().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.02, device=device))
        update: Any = optimizer.step
        callee: Any = model
        if compiled:
            callee = torch.compile(model, backend="neuron")
            update = torch.compile(optimizer.step, backend="neuron")
        for seed in range(3):
            loss = callee(numbers(8, 6, seed=seed).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            update()
        return model

    with no_fallback():
        got = run("neuron", compiled=True)
    assert_same_state(got, run("cpu", compiled=False))
