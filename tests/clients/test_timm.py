"""timm: training steps of convolutional and attention models, its optimizers, its average of
weights and channels_last; compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from clients.common import numbers, same_as_cpu
from clients.vision import timm
from support import assert_same, no_fallback

CLIENTS = ("timm", "torchvision")
pytestmark = pytest.mark.clients

# Small members of their families: name, image size.
MODELS = {
    "test_resnet": 32,
    "test_vit": 160,
    "test_convnext": 32,
    "test_efficientnet": 32,
    "test_nfnet": 32,
    "test_byobnet": 32,
    "ghostnet_050": 32,
}


def model(name: str, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    made: torch.nn.Module = timm().create_model(name, num_classes=5, **options)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_models_and_gradients(name: str) -> None:
    size = MODELS[name]
    same_as_cpu(model(name).eval(), numbers(2, 3, size, size), train=True, scale=20)


def train(network: torch.nn.Module, device: str, *, autocast: bool = False) -> Any:
    """Losses of two steps, the network, and the average of its weights."""
    timm()
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    optimizer = create_optimizer_v2(network, opt="sgd", lr=0.05, weight_decay=0.01, momentum=0.9)
    average = ModelEmaV3(network, decay=0.9, use_warmup=True)
    criterion = LabelSmoothingCrossEntropy(0.1)
    labels = torch.tensor([1, 4, 0, 2], device=device)
    losses = []
    network.train()
    for seed in (1, 2):
        pixels = numbers(4, 3, 32, 32, seed=seed).to(device)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = criterion(network(pixels), labels)
        loss.backward()
        timm().utils.dispatch_clip_grad(network.parameters(), 1.0, mode="norm")
        optimizer.step()
        optimizer.zero_grad()
        average.update(network, step=seed)
        losses.append(loss.item())
    return losses, average


@pytest.mark.parametrize(
    ("layout", "compiled"),
    [
        (torch.contiguous_format, False),
        (torch.channels_last, False),
        (torch.contiguous_format, True),
    ],
    ids=["eager", "channels last", "compiled"],
)
def test_training_follows_cpu(layout: torch.memory_format, compiled: bool) -> None:
    on_cpu = model("test_resnet").to(memory_format=layout)
    on_device = copy.deepcopy(on_cpu).to("neuron")
    expected, cpu_average = train(on_cpu, "cpu")
    if compiled:
        on_device.compile(backend="neuron")
    with no_fallback():
        got, average = train(on_device, "neuron")
    assert got == pytest.approx(expected, rel=1e-4)
    for name, value in cpu_average.module.state_dict().items():
        assert_same(average.module.state_dict()[name], value, strides=False, scale=50, where=name)


def test_training_under_autocast() -> None:
    network = model("test_resnet").to("neuron")
    with no_fallback():
        losses, _ = train(network, "neuron", autocast=True)
    assert losses == pytest.approx(train(model("test_resnet"), "cpu", autocast=True)[0], rel=2e-2)


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion", "adafactor", "adopt", "muon", "nadamw"])
def test_optimizers(name: str) -> None:
    timm()
    from timm.optim import create_optimizer_v2

    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        layer.to(device)
        optimizer = create_optimizer_v2(layer, opt=name, lr=0.01, weight_decay=0.05)
        for seed in (1, 2, 3):
            layer(numbers(4, 6, seed=seed).to(device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([p.detach().flatten() for p in layer.parameters()])

    with no_fallback():
        got = run("neuron")
    assert_same(got, run("cpu"), scale=50)
