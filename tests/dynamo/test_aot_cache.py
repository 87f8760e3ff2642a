"""AOTAutograd's cache, and artefacts that travel (TORCH_NEURONX_AOT_CACHE)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

from support import output_of
from torch_neuronx import config
from torch_neuronx.dynamo import aot_cache
from torch_neuronx.dynamo.options import Options

CODE = """
import json, os, sys
import torch, torch_neuronx
from torch_neuronx.compiler import ledger, session
if os.environ.get("LOAD"):
    torch.compiler.load_cache_artifacts(open(os.environ["LOAD"], "rb").read())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
model = model.to("neuron")
run = torch.compile(model, backend="neuron")
loss = run(torch.ones(2, 3).to("neuron")).square().sum()
loss.backward()
if os.environ.get("SAVE"):
    torch.neuron.synchronize()
    session.compiler().drain()  # what is still being stored would be left out
    content, info = torch.compiler.save_cache_artifacts()
    open(os.environ["SAVE"], "wb").write(content)
print(json.dumps({
    "loss": loss.item(), "grad": model[0].weight.grad.sum().item(),
    "graphs": [[g.kind, g.traced, g.specialisations[0].source] for g in ledger.graphs()],
    "jax": "jax" in sys.modules,
}))
"""


def run(root: Path, cache: str = "1", **environ: str) -> dict[str, object]:
    os.makedirs(root, mode=0o700, exist_ok=True)
    text = output_of(
        CODE,
        TORCH_NEURONX_AOT_CACHE=cache,
        TORCH_NEURONX_CACHE_DIR=str(root / "ours"),
        TORCHINDUCTOR_CACHE_DIR=str(root / "aot"),
        **environ,
    )
    found: dict[str, object] = json.loads(text.splitlines()[-1])
    return found


def test_a_second_process_neither_traces_nor_compiles_and_artefacts_travel(tmp_path: Path) -> None:
    saved = str(tmp_path / "artefacts")
    first = run(tmp_path / "here", SAVE=saved)
    assert first["graphs"] == [
        ["forward", "by AOTAutograd", "compiled"],
        ["backward", "by AOTAutograd", "compiled"],
    ]
    found = [["forward", "cached", "l1"], ["backward", "cached", "l1"]]
    second = run(tmp_path / "here")
    assert second == {**first, "graphs": found}
    elsewhere = run(tmp_path / "there", LOAD=saved)
    assert elsewhere == {**first, "graphs": found}
    # Without AOTAutograd's cache the executables are taken all the same.
    traced = [[kind, "by AOTAutograd", "l1"] for kind, _, _ in found]
    assert run(tmp_path / "off", cache="0", LOAD=saved) == {**first, "graphs": traced}


@pytest.fixture
def enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "aot"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    return root


def test_pickles_that_others_could_have_written_are_not_read(enabled: Path) -> None:
    with config.override({"TORCH_NEURONX_AOT_CACHE": "1"}):
        assert aot_cache.state() == ""
        assert enabled.stat().st_mode & 0o777 == 0o700
        entry = enabled / "aotautograd" / "key" / "entry"
        entry.parent.mkdir(parents=True, mode=0o700)
        entry.write_bytes(b"")
        entry.chmod(0o666)
        assert re.search(r"not safe .*entry: others can write it", aot_cache.state())
        entry.chmod(0o600)
        assert aot_cache.state() == ""
        entry.parent.chmod(0o777)
        assert re.search(r"not safe .*key: others can write it", aot_cache.state())


def test_off_by_default_and_nothing_is_changed(enabled: Path) -> None:
    assert "not set" in aot_cache.state()
    with aot_cache.use(Options(), lambda *_: print) as cache:
        assert cache is None
        assert not torch._functorch.config.bundled_autograd_cache


def test_settings_are_changed_within_only(enabled: Path) -> None:
    with config.override({"TORCH_NEURONX_AOT_CACHE": "1"}):
        with aot_cache.use(Options(), lambda *_: print) as cache:
            assert cache is not None and torch._functorch.config.bundled_autograd_cache
            first = torch.compiler.config.cache_key_tag
        with aot_cache.use(Options("other"), lambda *_: print):
            assert torch.compiler.config.cache_key_tag != first
    assert not torch._functorch.config.bundled_autograd_cache
    assert torch.compiler.config.cache_key_tag == ""
