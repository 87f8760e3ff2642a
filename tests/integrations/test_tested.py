"""Libraries that are missing or were not tested: an error that names the extra, a warning that
names the tested versions."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import warnings
from pathlib import Path

import pytest

from support import run_python
from torch_neuronx.integrations import tested

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tested.TESTED, "no-such-client", ("1.0", "1.0"))
    with pytest.raises(ImportError, match=r"torchneuron\[clients\]") as raised:
        tested.require("no-such-client")
    assert raised.value.name == "no_such_client"


@pytest.mark.parametrize("version", ["0.7.9", "0.9.0", "1.0.0rc1"])
def test_another_version_warns_of_what_was_tested(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.warns(tested.UntestedVersionWarning, match=rf"0\.8\.0; {re.escape(version)} is"):
        tested.require("safetensors")


def test_tested_versions_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.8.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tested.require("safetensors")


@pytest.mark.parametrize("said", ['__version__ = "3.1"', ""])
def test_a_checkout_on_the_path_needs_no_metadata(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_client.py").write_text(said)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_client", raising=False)
    monkeypatch.setitem(tested.TESTED, "own-client", ("1.0", "2.0"))
    with pytest.warns(tested.UntestedVersionWarning, match=r"3\.1 is" if said else "unknown"):
        assert tested.require("own-client").__name__ == "own_client"


def test_an_integration_of_pytorchs_own_warns_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.14.0+cpu")
    message = r"integrations\.flex_attention was tested with torch 2\.13\.0; 2\.14\.0\+cpu is"
    with pytest.warns(tested.UntestedVersionWarning, match=message):
        tested.require("torch", "flex_attention")


def test_every_integration_asks_for_its_library() -> None:
    folder = ROOT / "src" / "torch_neuronx" / "integrations"
    asked = set()
    for file in folder.glob("*.py"):
        asked.update(re.findall(r'^(?:\S.* = )?require\("([^"]+)"', file.read_text(), re.M))
    assert asked == tested.TESTED.keys()
    without = {"__init__", "tested", "lightning_parts"}
    for file in folder.glob("*.py"):
        assert file.stem in without or "require(" in file.read_text(), file.name


def test_the_extra_installs_the_last_tested_versions() -> None:
    wanted = (ROOT / "requirements" / "clients.txt").read_text()
    for name, (first, last) in tested.TESTED.items():
        assert tested._numbers(first) <= tested._numbers(last)
        assert name == "torch" or f"{name}=={last}\n" in wanted


def test_nothing_is_imported_or_patched_with_the_package() -> None:
    code = """
        import sys, torch
        import torch_neuronx, torch_neuronx.integrations
        torch.ones(2, device="neuron").sum().item()
        clients = {"transformers", "safetensors", "sentence_transformers"}
        clients |= {"lightning", "pytorch_lightning"}
        assert not clients & set(sys.modules), clients & set(sys.modules)
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
