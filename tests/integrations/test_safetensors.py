"""The opt-in loader of safetensors files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from support import assert_same

safetensors = pytest.importorskip("safetensors.torch")


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({"embed": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    model["head"].weight = model["embed"].weight
    return model


@pytest.mark.parametrize("device", ["neuron", "neuron:0", torch.device("neuron")])
def test_a_file_comes_to_the_device(tmp_path: Path, device: torch.device | str) -> None:
    from torch_neuronx.integrations.safetensors import load_file

    tensors = {
        "half": torch.randn(3, 2).bfloat16(),
        "index": torch.arange(4),
        "scalar": torch.tensor(True),
        "empty": torch.empty(0, 3),
    }
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors", device=device)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_same(loaded[name], tensor)


def test_other_devices_are_the_librarys(tmp_path: Path) -> None:
    from torch_neuronx.integrations.safetensors import load_file

    safetensors.save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    assert load_file(tmp_path / "x.safetensors", device="cpu")["x"].device.type == "cpu"
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.safetensors")


def test_a_model_with_tied_weights(tmp_path: Path) -> None:
    from torch_neuronx.integrations.safetensors import load_model

    file = tmp_path / "model.safetensors"
    saved = tied().to("neuron")
    safetensors.save_model(saved, str(file))
    model = tied().to("neuron")
    assert load_model(model, file, device="neuron") == (set(), [])
    assert_same(model["head"].weight.detach(), saved["embed"].weight.detach().cpu())
    assert model["head"].weight is model["embed"].weight
    with pytest.raises(RuntimeError, match="Missing key"):
        load_model(nn.Linear(3, 7).to("neuron"), file)
    missing, unexpected = load_model(nn.Linear(3, 7).to("neuron"), file, strict=False)
    assert len(missing) == 2 and len(unexpected) == 1
