"""What `init` writes: a pilot that runs on any machine, also where only the vendor's device is."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_readiness import exits, pilot
from neuron_readiness.cli import main
from neuron_readiness.pilot import Case, PilotError, as_case


class Configuration:
    def __init__(self, **entries: Any) -> None:
        self.__dict__.update({"hidden_size": 512, "num_hidden_layers": 24, "vocab_size": 4096})
        self.__dict__.update(entries)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class TinyForCausalLM(torch.nn.Module):
    """As a class of transformers looks: a configuration, and a forward with names."""

    config_class = Configuration
    scale = 1

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(config.vocab_size * self.scale, config.hidden_size)
        self.config = config

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        hidden = self.embed(input_ids)
        loss = None if labels is None else hidden.mean()
        return types.SimpleNamespace(loss=loss, logits=hidden)


class HugeForCausalLM(TinyForCausalLM):
    scale = 1000


class Seq2SeqModel(TinyForCausalLM):
    def forward(self, input_ids: Any, decoder_input_ids: Any = None) -> Any:  # type: ignore[override]
        return self.embed(decoder_input_ids)


class ImageModel(TinyForCausalLM):
    def forward(self, pixel_values: Any) -> Any:  # type: ignore[override]
        return pixel_values


class StrangeModel(TinyForCausalLM):
    def forward(self, molecule: Any) -> Any:  # type: ignore[override]
        return molecule


CLASSES = (TinyForCausalLM, HugeForCausalLM, Seq2SeqModel, ImageModel, StrangeModel)


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("transformers")
    module.__dict__.update({c.__name__: c for c in (Configuration, *CLASSES)}, __version__="0")
    monkeypatch.setitem(sys.modules, "transformers", module)


def written(folder: Path, *arguments: str) -> Path:
    path = folder / "pilot.py"
    assert main(["init", str(path), "--force", *arguments]) == exits.PROCEED
    return path


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {n.split(".")[0] for n in names}


def test_a_pilot_needs_nothing_but_pytorch(tmp_path: Path) -> None:
    assert imported(written(tmp_path)) == {"types", "torch"}


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("name", ["TinyForCausalLM", "Seq2SeqModel", "ImageModel"])
def test_a_pilot_of_a_library_needs_nothing_else_and_runs(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, "--hf", name)
    assert imported(path) == {"types", "torch", "transformers"}
    loaded = pilot.load(path)
    model = loaded.build()
    for case in loaded.cases("requests"):
        model(*case.args, **case.kwargs)
    assert loaded.part("simplified") == "random weights"
    train = loaded.cases("train")
    assert bool(train) == (name == "TinyForCausalLM")  # whose labels are known
    assert all(model(**c.kwargs).loss is not None for c in train)


@pytest.mark.usefixtures("transformers")
def test_a_model_that_is_large_by_default_is_reduced_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "--hf", "HugeForCausalLM")
    assert "num_hidden_layers=2," in path.read_text()
    loaded = pilot.load(path)
    assert "num_hidden_layers 2 of 24" in loaded.part("simplified")


@pytest.mark.usefixtures("transformers")
def test_pretrained_weights_are_not_called_simplified(tmp_path: Path) -> None:
    path = written(tmp_path, "--hf", "TinyForCausalLM", "--weights", "somewhere")
    text = path.read_text()
    assert "TinyForCausalLM.from_pretrained('somewhere')" in text and "simplified" not in text


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("name", "said"), [("StrangeModel", "molecule"), ("Nothing", "no model class")]
)
def test_what_cannot_be_written_is_told(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pilot.py"
    assert main(["init", str(path), "--hf", name]) == exits.USAGE
    assert said in capsys.readouterr().err and not path.exists()


def test_an_object_like_a_case_is_one() -> None:
    x = torch.ones(1)
    found = as_case(types.SimpleNamespace(name="a", args=[x], frequency=3), 0, "hard")
    assert found == Case("a", (x,), {}, 3, hard=True)
    assert as_case(types.SimpleNamespace(kwargs={"x": x}), 2, "requests").name == "requests-2"
    with pytest.raises(PilotError, match="freqency"):
        as_case(types.SimpleNamespace(args=(x,), freqency=1), 0, "requests")
