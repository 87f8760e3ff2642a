"""Compile without running, take the executables elsewhere, run there without compiling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import output_of
from torch_neuronx.cli import main
from torch_neuronx.compiler import bundle
from torch_neuronx.compiler.cache import DiskCache

MODEL = """
import json, torch, torch_neuronx
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)).to("neuron")
compiled = torch.compile(model, backend="neuron")
x = torch.ones(3, 5).to("neuron")
"""
COMPILE = (
    MODEL
    + """
compiled(x).square().mean().backward()
torch.neuron.synchronize()
try:
    compiled(x).cpu()
    refused = ""
except RuntimeError as error:
    refused = str(error)
print(json.dumps({
    "launches": torch_neuronx._C.counters()["launches"],
    "moved": torch_neuronx._C.counters()["h2d_bytes"],
    "compiled": sum(e["source"] == "compiled" for e in torch_neuronx.compile_events()),
    "refused": refused,
}))
"""
)
RUN = (
    MODEL
    + """
compiled(x).square().mean().backward()
norm = sum(p.grad.square().sum().item() for p in model.parameters())
graphs = [e["source"] for e in torch_neuronx.compile_events() if "model_default" in e["name"]]
print(json.dumps({"norm": norm, "graphs": graphs}))
"""
)


def run(code: str, cache: Path, **environ: str) -> dict[str, object]:
    return json.loads(output_of(code, TORCH_NEURONX_CACHE_DIR=str(cache), **environ))


@pytest.mark.full
def test_executables_made_without_running_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(COMPILE, tmp_path / "here", TORCH_NEURONX_COMPILE_ONLY="1")
    assert made["launches"] == made["moved"] == 0  # no buffer was made on the device
    assert int(str(made["compiled"])) >= 2
    assert "TORCH_NEURONX_COMPILE_ONLY=1" in str(made["refused"])
    there = DiskCache(tmp_path / "there")
    count = bundle.export(DiskCache(tmp_path / "here"), str(tmp_path / "file"))
    assert bundle.take(there, str(tmp_path / "file")) == count
    ran = run(RUN, tmp_path / "there")
    assert set(ran["graphs"]) == {"l1"} and ran["norm"] > 0
    assert ran["norm"] == pytest.approx(run(RUN, tmp_path / "other")["norm"], rel=1e-5)


@pytest.fixture
def caches(tmp_path: Path) -> tuple[DiskCache, DiskCache, str]:
    here, there = DiskCache(tmp_path / "here"), DiskCache(tmp_path / "there")
    assert here.put("a" * 64, {"name": "a"}, b"code", "hlo")
    assert here.put("b" * 64, {"name": "b"}, b"", "op")
    return here, there, str(tmp_path / "file")


def test_entries_arrive_as_they_left(caches: tuple[DiskCache, DiskCache, str]) -> None:
    here, there, file = caches
    assert bundle.export(here, file) == bundle.take(there, file) == 2
    assert there.get("a" * 64, "hlo") == here.get("a" * 64, "hlo")
    assert there.get("b" * 64, "op").meta == {"name": "b"}


def test_signature(caches: tuple[DiskCache, DiskCache, str]) -> None:
    here, there, file = caches
    bundle.export(here, file)
    with pytest.raises(bundle.BundleError, match="not signed"):
        bundle.take(there, file, b"secret")
    bundle.export(here, file, b"secret")
    with pytest.raises(bundle.BundleError, match="does not fit"):
        bundle.take(there, file, b"other")
    assert there.list() == ()
    assert bundle.take(there, file, b"secret") == 2


def test_damaged_and_foreign_files_are_refused(
    caches: tuple[DiskCache, DiskCache, str], tmp_path: Path
) -> None:
    import zipfile

    here, there, file = caches
    bundle.export(here, file)
    changed = tmp_path / "changed"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data[:-1] + b"x" if name.startswith("hlo") else data)
    with pytest.raises(bundle.BundleError, match="not what was exported"):
        bundle.take(there, str(changed))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(bundle.BundleError, match="not a file of"):
        bundle.take(there, str(tmp_path / "text"))
    assert there.list() == ()


def test_command_wants_trust(
    caches: tuple[DiskCache, DiskCache, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from torch_neuronx.compiler import cache

    here, there, file = caches
    monkeypatch.setattr(cache, "shared_cache", lambda: here)
    assert main(["cache", "export", file]) == 0
    monkeypatch.setattr(cache, "shared_cache", lambda: there)
    assert main(["cache", "import", file]) == 1
    assert "--trust" in capsys.readouterr().err and there.list() == ()
    assert main(["cache", "import", "--trust", file]) == 0
    assert len(there.list()) == 2
