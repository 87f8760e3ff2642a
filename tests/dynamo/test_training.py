"""Ways to train a compiled model: accumulation, parts, compiled autograd, whole steps, export."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from support import Executables, assert_same, no_fallback


@pytest.fixture(autouse=True)
def whole_graphs() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*operator by operator")
        yield


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    on_cpu = mlp()
    return on_cpu, copy.deepcopy(on_cpu).to("neuron")


def assert_trained_alike(on_device: nn.Module, on_cpu: nn.Module) -> None:
    expected = on_cpu.state_dict()
    for key, value in on_device.state_dict().items():
        assert_same(value, expected[key], scale=20, where=key)


def batches(count: int) -> list[torch.Tensor]:
    return [torch.randn(4, 6) for _ in range(count)]


def test_gradient_accumulation() -> None:
    on_cpu, on_device = pair()
    compiled = torch.compile(on_device, backend="neuron")
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (on_cpu, on_device)]
    for i, x in enumerate(batches(4)):
        (on_cpu(x).square().mean() / 2).backward()
        (compiled(x.to("neuron")).square().mean() / 2).backward()
        if i % 2:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert_trained_alike(on_device, on_cpu)


def test_compiled_submodules() -> None:
    on_cpu, on_device = pair()
    on_device[0].compile(backend="neuron")
    on_device[1].compile(backend="neuron")
    for x in batches(2):
        on_cpu(x).square().mean().backward()
        on_device(x.to("neuron")).square().mean().backward()
    for p, q in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
        assert_same(p.grad, q.grad, scale=10)
    assert_trained_alike(on_device, on_cpu)


def test_compiled_autograd() -> None:
    on_cpu, on_device = pair()
    data = batches(2)
    for x in data:
        on_cpu(x).square().mean().backward()

    def step(x: torch.Tensor) -> None:
        on_device(x).square().mean().backward()

    with torch._dynamo.config.patch(compiled_autograd=True), no_fallback():
        compiled = torch.compile(step, backend="neuron")
        for x in data:
            compiled(x.to("neuron"))
    for p, q in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
        assert_same(p.grad, q.grad, scale=10)


def test_whole_step_in_one_executable() -> None:
    """Forward, backward and update as one function, with torch.func."""
    on_cpu, on_device = pair()

    def make_step(model: nn.Module) -> Callable[..., Any]:
        def loss(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model.eval(), p, (x,)).square().mean()

        def step(p: dict[str, torch.Tensor], m: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
            value, g = torch.func.grad_and_value(loss)(p, x)[::-1]
            m = {k: 0.9 * m[k] + g[k] for k in p}
            return value, {k: p[k] - 0.1 * m[k] for k in p}, m

        return step

    def start(model: nn.Module) -> Any:
        p = {k: v.detach() for k, v in model.named_parameters()}
        return p, {k: torch.zeros_like(v) for k, v in p.items()}

    reference, compiled = make_step(on_cpu), torch.compile(
        make_step(on_device), backend="neuron", fullgraph=True
    )  # fmt: skip
    expected, actual = start(on_cpu), start(on_device)
    data = [(x, x.to("neuron")) for x in batches(3)]
    with no_fallback():
        for i, (x, moved) in enumerate(data):
            loss, *expected = reference(*expected, x)
            with Executables() as new:
                got, *actual = compiled(*actual, moved)
                torch.neuron.synchronize()  # the first step has compiled
            assert new.count == (i == 0)
            assert_same(got, loss)
    for key, value in expected[0].items():
        assert_same(actual[0][key], value)


def test_exported_program_runs_on_the_device() -> None:
    on_cpu = mlp().eval()
    x = torch.randn(4, 6)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(on_cpu, (x,), dynamic_shapes=({0: batch},))
    moved = move_to_device_pass(program, "neuron").module()
    compiled = torch.compile(moved, backend="neuron", dynamic=True)
    for n in (4, 7):
        y = torch.randn(n, 6)
        with no_fallback(), torch.no_grad():
            assert_same(moved(y.to("neuron")), on_cpu(y))
            assert_same(compiled(y.to("neuron")), on_cpu(y))


def test_a_model_on_the_device_is_exported() -> None:
    on_cpu, on_device = pair()
    x = torch.randn(4, 6)
    program = torch.export.export(on_device.eval(), (x.to("neuron"),))
    assert_same(program.module()(x.to("neuron")), on_cpu.eval()(x))


def test_reduced_precision_step_with_a_grad_scaler() -> None:
    on_cpu, on_device = pair()
    compiled = torch.compile(on_device, backend="neuron")
    scaler = torch.amp.GradScaler("neuron", init_scale=16.0)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (on_cpu, on_device)]
    x = torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        on_cpu(x).float().square().mean().backward()
    optimizers[0].step()
    with torch.autocast("neuron", torch.bfloat16):
        loss = compiled(x.to("neuron")).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizers[1])
    scaler.update()
    for p, q in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=0.02, atol=2e-3)


def test_fractional_pooling_trains() -> None:
    """PyTorch has no meta kernel of its backward: fake tensors ran CPU's on arbitrary indices."""
    x = torch.randn(1, 2, 6, 6, 6, generator=torch.Generator().manual_seed(0))
    samples = torch.rand(1, 2, 3, generator=torch.Generator().manual_seed(1))

    def pooled(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.fractional_max_pool3d(
            x, 2, output_size=3, _random_samples=samples
        )
        return result

    on_cpu, moved = x.clone().requires_grad_(), x.to("neuron").requires_grad_()
    pooled(on_cpu, samples).square().sum().backward()
    compiled = torch.compile(pooled, backend="neuron", fullgraph=True)
    compiled(moved, samples.to("neuron")).square().sum().backward()
    torch.testing.assert_close(moved.grad.cpu(), on_cpu.grad)
