"""TorchAO's weight-only int8 linear layers on the device: quantised there or on the host, eager and
compiled, saved and loaded. Their weight is a wrapper subclass over device tensors."""

from __future__ import annotations

import importlib
import io
import itertools
from typing import Any

import pytest
import torch

from support import no_fallback

CLIENTS = ("torchao",)
pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SIZES = (64, 128, 96, 32)


def plain() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for i, o in itertools.pairwise(SIZES):
        layers += [torch.nn.Linear(i, o), torch.nn.GELU()]
    return torch.nn.Sequential(*layers[:-1]).to(torch.bfloat16).eval()


def quantised(device: str, *, on_host: bool = False) -> torch.nn.Sequential:
    quantization: Any = importlib.import_module("torchao.quantization")
    model = plain()
    if not on_host:
        model.to(device)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model.to(device)


def inputs() -> torch.Tensor:
    return torch.randn(5, SIZES[0], generator=torch.Generator().manual_seed(1)).bfloat16()


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.device.type == "neuron"
    torch.testing.assert_close(got.cpu(), want, rtol=1.6e-2, atol=1e-2)


@pytest.mark.parametrize("on_host", [False, True], ids=["on the device", "on the host"])
@torch.no_grad()
def test_eager(on_host: bool) -> None:
    want, exact = quantised("cpu")(inputs()), plain()(inputs())
    with no_fallback():
        model = quantised("neuron", on_host=on_host)
        assert type(model[0].weight).__name__ == "Int8Tensor"
        assert model[0].weight.device.type == "neuron"
        got = model(inputs().to("neuron"))
    assert_close(got, want)
    assert not torch.equal(got.cpu(), exact)  # it is quantised,
    torch.testing.assert_close(got.cpu(), exact, rtol=0.1, atol=0.05)  # and near


@torch.no_grad()
def test_compiled() -> None:
    want = quantised("cpu")(inputs())
    with no_fallback():
        compiled = torch.compile(quantised("neuron"), backend="neuron", dynamic=False)
        assert_close(compiled(inputs().to("neuron")), want)


@torch.no_grad()
def test_saved_and_loaded() -> None:
    file = io.BytesIO()
    torch.save(quantised("neuron").state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=False)
    model = plain().to("neuron")
    model.load_state_dict(state, assign=True)
    assert type(model[0].weight).__name__ == "Int8Tensor"
    assert_close(model(inputs().to("neuron")), quantised("cpu")(inputs()))
