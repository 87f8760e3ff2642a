"""torch_neuronx.explain says what became of a function, and TORCH_TRACE has it too."""

from __future__ import annotations

import logging
import re

import pytest
import torch

import torch_neuronx
from support import assert_same
from torch_neuronx.compiler import ledger


def test_explains_graphs_breaks_operators_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.mse_loss(x @ x, x)
        torch._dynamo.graph_break()
        return y.sin()

    x = torch.randn(4, 4)
    seen = torch_neuronx.explain(function, x.to("neuron"))
    assert_same(seen.result, function(x))
    assert len(seen.graphs) == 2
    (stop,) = seen.breaks
    assert "graph_break" in stop.reason and re.search(r"test_explain\.py:\d+$", stop.line)
    assert {"aten::mm", "aten::sin"} <= set(seen.native())
    assert seen.fallback() == []
    product = seen.graphs[0].specialisations[0]
    assert product.flops == 2 * 4**3
    assert product.bytes_accessed >= 3 * 4 * 16  # the product alone: three matrices
    assert seen.peak_bytes >= 64
    assert str(seen) in capsys.readouterr().out


def test_a_second_call_lists_only_what_is_new() -> None:
    function = torch.compile(lambda x: x.cos(), backend="neuron", dynamic=True)
    function(torch.ones(3).to("neuron"))
    assert torch_neuronx.explain(function, torch.ones(3).to("neuron")).graphs == ()
    (graph,) = torch_neuronx.explain(function, torch.ones(5).to("neuron")).graphs
    assert "float32[3] -> float32[5]" in graph.specialisations[-1].cause


def test_an_operator_without_rule_is_named() -> None:
    with pytest.warns(UserWarning, match="operator by operator"):
        seen = torch_neuronx.explain(torch.dequantize, torch.eye(2).to("neuron"))
    assert seen.fallback() == ["aten::dequantize.self"]
    assert "operator by operator, because" in str(seen)


def test_an_operator_that_cannot_run_anywhere_is_named() -> None:
    with pytest.warns(UserWarning, match="operator by operator"):
        seen = torch_neuronx.explain(
            lambda x: torch.ops.aten._masked_scale(x, x > 0, 2.0), torch.ones(3).to("neuron")
        )
    assert seen.refused() == ["aten::_masked_scale"] and seen.fallback() == []
    assert "it raises: aten::_masked_scale has neither a lowering rule" in str(seen)


def test_specialisations_are_traced_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_neuronx.dynamo import causes

    traced = []

    def record(kind: str, metadata_fn: object, payload_fn: object) -> None:
        traced.append((kind, metadata_fn(), payload_fn()))

    monkeypatch.setattr(causes, "trace_structured", record)
    with caplog.at_level(logging.INFO, "torch_neuronx.dynamo"):
        torch.compile(lambda x: x.tan(), backend="neuron")(torch.ones(3).to("neuron"))
        torch.neuron.synchronize()
    (kind, metadata, payload) = traced[0]
    name = ledger.graphs()[-1].graph_name
    assert kind == "artifact" and metadata["name"] == f"neuron_{name}"
    assert '"cause": "first capture"' in payload
    assert f"{name}: " in caplog.text
