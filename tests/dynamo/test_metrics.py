"""Records of compiled graphs: torch.neuron's metrics, Dynamo's counters, CSV, artefacts."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from support import assert_same
from torch_neuronx import config
from torch_neuronx.compiler import ledger

FIELDS = {
    "graph_id",
    "graph_name",
    "model_name",
    "has_collectives",
    "graph_node_count",
    "timestamp",
    "torch_neuronx_fx_passes_us",
    "torch_neuronx_lower_us",
    "torch_neuronx_compile_us",
}


@pytest.fixture(autouse=True)
def no_records() -> None:
    torch.neuron.reset_dynamo_metrics()


def train(width: int) -> None:
    x = torch.randn(2, width).to("neuron").requires_grad_()
    torch.compile(lambda x: x.sin().sum(), backend="neuron")(x).backward()


def test_one_record_a_graph() -> None:
    train(3)
    forward, backward = torch.neuron.get_dynamo_metrics()
    assert forward.keys() == backward.keys() == FIELDS
    assert forward["graph_id"] == backward["graph_id"]
    assert forward["model_name"] == "model_default" and forward["has_collectives"] is False
    assert forward["graph_node_count"] > 2 and forward["torch_neuronx_fx_passes_us"] > 0
    assert counters["neuron"]["compiled_graphs"] == 2
    assert counters["neuron"]["graphs_with_collectives"] == 0
    torch.neuron.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics() == []
    assert "neuron" not in counters


def test_each_specialisation_has_its_cause_and_cost() -> None:
    function = torch.compile(lambda x, k: (x @ x.t()) * k, backend="neuron", dynamic=True)
    for n in (3, 5):
        function(torch.randn(n, 4).to("neuron"), torch.tensor(2.0))
    torch.neuron.synchronize()
    (graph,) = ledger.graphs()
    assert graph.cause == "first capture" and graph.kind == "inference"
    assert "aten::mm" in graph.native and graph.fallback == ()
    first, second = graph.specialisations
    assert first.cause == "first capture"
    assert "3 -> 5" in second.cause and "float32[3, 4] -> float32[5, 4]" in second.cause
    assert (first.flops, second.flops) == (2 * 3 * 3 * 4, 2 * 5 * 5 * 4)
    assert {s.source for s in graph.specialisations} <= {"compiled", "l1", "l2"}
    assert all(s.size_bytes > 0 for s in graph.specialisations)


def test_a_recapture_names_the_guard() -> None:
    function = torch.compile(lambda x, flag: x + 1 if flag else x - 1, backend="neuron")
    for flag in (True, False):
        function(torch.ones(3).to("neuron"), flag)
    _, second = ledger.graphs()
    assert second.cause.startswith("guard failed: ") and "flag" in second.cause


def test_tables_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(7)
    torch.neuron.synchronize()
    monkeypatch.setattr(ledger, "_exports", ["graph_stats", "specialisations"])
    paths = ledger.export(str(tmp_path))
    names = [Path(p).name for p in paths]
    assert names == ["metric_table_graph_stats_rank0.csv", "metric_table_specialisations_rank0.csv"]
    with open(paths[0], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["graph_name"] for r in rows] == [
        m["graph_name"] for m in torch.neuron.get_dynamo_metrics()
    ]
    with open(paths[1], newline="") as file:
        assert len(list(csv.DictReader(file))) == 2


def test_an_unknown_table_is_an_error() -> None:
    function = torch.compile(lambda x: x + 1, backend="neuron")
    chosen = config.override({"TORCH_NEURONX_ENABLED_METRIC_TABLES": "graph_stats, graphs"})
    with chosen, pytest.raises(Exception, match=r"'graphs' is not registered.*graph_stats"):
        function(torch.ones(3).to("neuron"))


def test_artefacts_lie_in_torchneurons_folders(tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    kept = {
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": "1",
        "TORCH_NEURONX_DEBUG_DIR": str(tmp_path),
    }
    with config.override(kept):
        # A constant of its own, so that no cache has it.
        constant = random.SystemRandom().random()
        function = torch.compile(
            lambda x: x.sin() * constant, backend="neuron", options={"model_name": "kept"}
        )
        assert_same(function(x.to("neuron")), x.sin() * constant)
        torch.neuron.synchronize()
    files = {p.relative_to(tmp_path).parts for p in tmp_path.rglob("*") if p.is_file()}
    assert {f[:2] for f in files} == {
        (folder, "proc_0") for folder in ("fx_graphs", "raw", "stablehlo", "neff")
    }
    assert all(f[2].startswith("kept_") for f in files)
    endings = {f[2].partition(".")[2] for f in files}
    assert endings == {
        "fx.txt", "program.json", "stablehlo.mlirbc", "pjrt", "options.pb", "json"
    }  # fmt: skip
    (graph,) = (tmp_path / "fx_graphs" / "proc_0").iterdir()
    assert "torch.ops.aten.sin.default" in graph.read_text()


def test_a_directory_that_does_not_take_the_tables_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(ledger, "_exports", ["graph_stats"])
    with config.override({"TORCH_NEURONX_METRICS_DIR": str(tmp_path / "file")}):
        ledger._export_at_exit()
    (said,) = [r.getMessage() for r in caplog.records]
    assert "metric tables were not written (TORCH_NEURONX_METRICS_DIR)" in said
