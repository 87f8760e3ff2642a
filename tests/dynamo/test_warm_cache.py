"""A second process reaches its first step without compiling or lowering anything (D14)."""

from __future__ import annotations

import collections
import json
from pathlib import Path

from support import output_of

STEP = """
import json, torch, torch_neuronx
from torch import nn
from torch_neuronx.lowering import client

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(64, 3),
).to("neuron")
forward = torch.compile(model, backend="neuron", dynamic=True) if COMPILED else model
optimizer = torch.optim.AdamW(model.parameters())
for batch in (2, 3):
    loss = forward(torch.randn(batch, 1, 6, 6).to("neuron")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({
    "loss": loss.item(),
    "sources": [e["source"] for e in torch_neuronx.compile_events()],
    "servers": client.stats().starts,
}))
"""


def run(compiled: bool, cache: Path) -> dict[str, object]:
    code = STEP.replace("COMPILED", str(compiled))
    return json.loads(output_of(code, TORCH_NEURONX_CACHE_DIR=str(cache)))


def check(compiled: bool, cache: Path) -> None:
    cold = run(compiled, cache)
    sources = collections.Counter(cold["sources"])
    assert sources["compiled"] > 0
    assert cold["servers"] > 0
    warm = run(compiled, cache)
    assert set(warm["sources"]) == {"l1"}
    assert len(warm["sources"]) == len(cold["sources"])
    assert warm["servers"] == 0
    assert warm["loss"] == cold["loss"]


def test_eager(tmp_path: Path) -> None:
    check(False, tmp_path / "cache")


def test_compiled(tmp_path: Path) -> None:
    check(True, tmp_path / "cache")
