"""One architecture's row: each column is answered on its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuron_readiness.adapters import adapter_for
from neuron_readiness.sweep import probe
from neuron_readiness.sweep.results import aims
from neuron_readiness.sweep.sources import Built, CannotBuild


class Net(torch.nn.Module):
    """``mode`` makes it misbehave where a test wants it to."""

    def __init__(self, mode: str = "") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.mode = mode
        self.kept: torch.Tensor | None = None
        if mode == "strides":
            self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        if self.mode == "draws":
            y = y + torch.rand(4, device=x.device)
        if self.mode == "keeps":
            if self.kept is None:
                self.kept = torch.ones(4, device=x.device)
            y = y * self.kept
        if self.mode == "strides":  # a batch of one, whose gradient comes with permuted strides
            y = self.norm(y[:1, :, None, None].repeat(1, 1, 2, 2))
            return {"y": y.permute(2, 3, 0, 1).reshape(16, 1) @ self.layer.weight[:1]}
        if self.mode == "host" and x.device.type == "neuron":
            y = y.dequantize()  # of a plain tensor: the same
        if self.mode == "wrong" and x.device.type == "neuron":
            y = y + 1e-2
        if self.mode == "ties":
            best = torch.zeros(2, 4, device=x.device).topk(2).indices
            shift = best if x.device.type == "cpu" else 3 - best
            return {"y": y.gather(1, shift)}
        if self.mode == "counts":  # how often, only the data tell
            for _ in range(0, (x.detach() > -2).sum(), 4):
                y = y * 0.5
        if self.mode == "raises" and x.device.type == "neuron":
            raise RuntimeError("not on this device")
        if self.mode == "breaks":
            torch._dynamo.graph_break()
            y = y * 2
        if self.mode == "captured" and torch.compiler.is_compiling():
            y = y + 1
        return {"y": y if self.mode != "ids" else y.argmax(-1)}


def row_of(monkeypatch: pytest.MonkeyPatch, mode: str, device: str = "neuron") -> dict[str, Any]:
    def build(name: str) -> Built:
        if mode == "unknown":
            raise CannotBuild("no recipe fits")
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 8).view(2, 4)
        return Built(Net(mode).eval(), {"x": x}, "Net", "x", "none", 20)

    monkeypatch.setattr(probe, "load", lambda source: SimpleNamespace(build=build))
    return probe.probe("s", "net", "f", adapter_for(device))


def test_a_model_that_is_right_in_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "")
    assert {c: row[c] for c in probe.COLUMNS} == dict.fromkeys(probe.COLUMNS, True)
    assert (row["errors"], row["host_operators"], row["graph_breaks"]) == ({}, [], 0)


def test_a_host_operator_leaves_the_numbers_right(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "host")
    assert row["forward"] and row["on_device"] is False and row["agrees"]
    assert "aten::dequantize.self" in row["host_operators"]


def test_wrong_numbers_are_told_from_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "wrong")
    assert row["forward"] and row["agrees"] is False and row["backward_agrees"] is True
    assert "output.y: differs by 0.01" in row["errors"]["agrees"]


def test_what_hangs_on_the_order_of_equal_scores_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_of(monkeypatch, "wrong")["reference_moves"] < 1
    row = row_of(monkeypatch, "ties")
    assert row["agrees"] is False and row["reference_moves"] > 1
    assert row["backward_agrees"] is False and row["reference_gradients_move"] > 1


def test_what_hangs_on_random_numbers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "draws")
    assert row["agrees"] is False and row["reference_moves"] > 1


def test_a_gradient_that_hangs_on_strides_on_the_cpu_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch 2.13's batch norm on the CPU; one that is right there makes this test superfluous."""
    row = row_of(monkeypatch, "strides")
    assert row["agrees"] and row["backward_agrees"] is False
    assert row["reference_gradients_move"] > 1


def test_what_modules_keep_goes_to_the_device_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "keeps")
    assert row["agrees"] and row["backward_agrees"]


def test_an_error_on_the_device_keeps_the_other_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "raises")
    assert row["loads"] and row["forward"] is False and row["agrees"] is None
    assert row["backward"] is False and row["compiles"] is False
    assert "not on this device" in row["errors"]["forward"]


def test_graph_breaks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(monkeypatch, "breaks")
    assert row["compiles"] and row["graph_breaks"] == 1
    assert row["fullgraph"] is False and row["reference_captures"] is False
    assert "graph_break" in row["errors"]["fullgraph"]


def test_a_loop_whose_turns_the_data_tell_is_the_models_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = row_of(monkeypatch, "counts")
    assert row["fullgraph"] is False and row["reference_captures"] is False
    assert row["agrees"] and row["compiled_agrees"]
    assert any("range of 'int', 'Tensor'" in reason for reason in row["break_reasons"])
    assert aims([row])[1]["excused"] == 1
    assert aims([row_of(monkeypatch, "breaks")])[1]["excused"] == 0


def test_what_computes_otherwise_when_captured_is_compared_with_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = row_of(monkeypatch, "captured")
    assert row["fullgraph"] and row["compiled_agrees"] and row["capture_moves"] > 1
    wrong = row_of(monkeypatch, "wrong")
    assert wrong["compiled_agrees"] is False and wrong["capture_moves"] < 1


def test_what_cannot_be_trained_or_built_counts_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert row_of(monkeypatch, "ids")["trainable"] is False
    unknown = row_of(monkeypatch, "unknown")
    assert unknown["loads"] is False and unknown["forward"] is None
    assert "no recipe fits" in unknown["errors"]["loads"]


@pytest.mark.clients
@pytest.mark.parametrize("name", ["bert", "t5", "vit", "wav2vec2", "mixtral"])
def test_architectures_of_transformers_are_reduced_and_run(name: str) -> None:
    from neuron_readiness.sweep.sources import transformers

    assert transformers.available() is None
    assert name in dict(transformers.names())
    built = transformers.build(name)
    assert built.parameters < 10_000_000 and built.reduction == "1/16"
    with torch.no_grad():
        assert built.model(**built.kwargs) is not None
