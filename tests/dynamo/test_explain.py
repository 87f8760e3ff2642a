"""torch_neuronx.explain says what became of a function, and TORCH_TRACE has it too."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_neuronx
from support import assert_same, run_python
from torch_neuronx.compiler import ledger, session


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

    def record(kind: str, metadata_fn: Any, payload_fn: Any) -> None:
        traced.append((kind, metadata_fn(), json.loads(payload_fn())))

    monkeypatch.setattr(causes, "trace_structured", record)
    with caplog.at_level(logging.INFO, "torch_neuronx.dynamo"):
        for _ in range(2):  # compiled, or from the cache; then from the cache
            torch._dynamo.reset()
            torch.compile(lambda x: x.tan() @ x, backend="neuron")(torch.ones(3, 3).to("neuron"))
            torch.neuron.synchronize()
            session.compiler().drain()
    graphs = ledger.graphs()[-2:]
    names = [f"neuron_{g.graph_name}" for g in graphs]
    traced = [t for t in traced if t[1]["name"] in names]  # no late one of another test
    assert [t[1]["name"] for t in traced] == names
    for (kind, _, payload), graph in zip(traced, graphs, strict=True):
        assert kind == "artifact"
        assert payload["cause"] == "first capture"
        assert payload["flops"] == 2 * 3 * 3 * 3 and payload["plan_s"] > 0
        assert f"{graph.graph_name}: {payload['source']}: " in caplog.text
    assert traced[1][2]["source"] == "l1"


def test_output_code_is_logged() -> None:
    code = """
        import torch
        torch.compile(lambda x: x.tan(), backend="neuron")(torch.ones(3, device="neuron"))
    """
    text = run_python(code, TORCH_LOGS="output_code").stderr
    assert "as it is lowered to StableHLO" in text and "torch.ops.aten.tan.default" in text


B, H, KV, Q, K, E = 2, 4, 2, 6, 8, 16
_ATTENTION = 2 * 2 * B * H * Q * K * E


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


@pytest.mark.parametrize(
    ("function", "shapes", "forward", "backward"),
    [
        (_attend, [(B, H, Q, E), (B, H, K, E), (B, H, K, E)], _ATTENTION, 2 * _ATTENTION),
        (_attend, [(B, H, Q, E), (B, KV, K, E), (B, KV, K, E)], _ATTENTION, None),
        (torch.mv, [(3, 4), (4,)], 2 * 3 * 4, None),
        (torch.dot, [(5,), (5,)], 2 * 5, None),
        (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5, None),
        (torch.conv1d, [(2, 3, 8), (5, 3, 1)], 2 * 2 * 5 * 8 * 3, 2 * 2 * 2 * 5 * 8 * 3),
    ],
)
def test_flops_by_hand(
    function: Any, shapes: list[tuple[int, ...]], forward: int, backward: int | None
) -> None:
    torch.neuron.reset_dynamo_metrics()
    inputs = [torch.randn(s).to("neuron").requires_grad_(backward is not None) for s in shapes]
    result = torch.compile(function, backend="neuron")(*inputs)
    if backward is not None:
        result.sum().backward()
    counted = [s.flops for g in ledger.graphs() for s in g.specialisations]
    assert counted == [forward] + ([] if backward is None else [backward])


def test_flops_of_a_recurrent_network() -> None:
    steps, batch, width, hidden = 5, 3, 4, 6
    torch.neuron.reset_dynamo_metrics()
    model = torch.compile(torch.nn.LSTM(width, hidden).to("neuron"), backend="neuron")
    with torch._dynamo.config.patch(allow_rnn=True):
        model(torch.randn(steps, batch, width).to("neuron").requires_grad_())[0].sum().backward()
    counted = [s.flops for g in ledger.graphs() for s in g.specialisations]
    products = 2 * steps * batch * 4 * hidden * (width + hidden)
    assert counted == [products, 2 * products]


def test_a_formula_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_neuronx.dynamo import costs

    def fails(*args: Any, **kwargs: Any) -> int:
        raise AssertionError("shapes")

    monkeypatch.setattr(costs, "_formulas", lambda: {torch.ops.aten.mm: fails})
    x = torch.ones(2, 2)
    assert_same(torch.compile(torch.mm, backend="neuron")(x.to("neuron"), x.to("neuron")), x @ x)
    assert ledger.graphs()[-1].specialisations[0].flops == 0
