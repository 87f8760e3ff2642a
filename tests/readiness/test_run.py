"""A pilot's way from the file to the decision, and what is kept when it goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_readiness import exits
from readiness.support import EXAMPLES, PLAIN, run, run_text


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("classifier") / "record"
    return *run(EXAMPLES / "classifier.py", out), out


def test_a_classifier_proceeds(classifier: tuple[int, dict[str, Any], Path]) -> None:
    code, record, _ = classifier
    assert record["faults"] == []
    assert record["decision"]["verdict"] == "proceed"
    assert code == exits.PROCEED
    assert record["items"]["execution"]["facts"]["unaccepted_host_operators"] == 0


def test_what_a_run_writes(classifier: tuple[int, dict[str, Any], Path]) -> None:
    import jsonschema
    import pyarrow.parquet as parquet

    import neuron_readiness.record as package

    _, record, folder = classifier
    schema = json.loads((Path(package.__file__).parent / "schema.json").read_text())
    jsonschema.validate(record, schema)
    for name in ("operators", "shapes", "timings", "layers", "outputs"):
        assert parquet.read_table(folder / "ledgers" / f"{name}.parquet").num_rows > 0, name
    page = (folder / "report.html").read_text()
    assert "<script" not in page and "src=" not in page
    title = record["decision"]["title"]
    assert title in page[: page.index("Environment identity")]
    assert (folder / "report.md").read_text().startswith(f"# {title}")


def test_compare_names_what_changed(
    classifier: tuple[int, dict[str, Any], Path], tmp_path: Path
) -> None:
    _, record, folder = classifier
    other = json.loads(json.dumps(record))
    other["decision"]["title"] = "Keep the existing path"
    other["options"]["repeats"] = 4
    changed = tmp_path / "record.json"
    changed.write_text(json.dumps(other))
    done = subprocess.run(
        [sys.executable, "-m", "neuron_readiness.cli", "compare", str(folder), str(changed)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "B Keep the existing path" in done.stdout
    assert "repeats" in done.stdout and "environment: the same" in done.stdout


def test_a_device_that_is_absent(tmp_path: Path) -> None:
    code, record = run_text(tmp_path, PLAIN, "--device", "xpu")
    assert code == exits.FAULTS["device-absent"]
    assert record["decision"]["verdict"] == "continue"
    assert record["items"]["inventory"]["status"] == "done"  # what needs no device is known
    assert "the device 'xpu' is absent" in record["items"]["correctness"]["reason"]
    assert record["decision"]["title"] == "The pilot did not run: nothing is claimed"


def test_a_reference_that_is_absent(tmp_path: Path) -> None:
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    code, record = run_text(tmp_path, PLAIN, "--device", "cpu", "--reference", "xpu", **environ)
    assert code == exits.FAULTS["device-absent"]
    assert [f["kind"] for f in record["faults"]] == ["device-absent"]
    assert "reference 'xpu' is absent" in record["faults"][0]["text"]
    assert record["items"]["effort"]["status"] == "done"
    assert "the reference 'xpu' is absent" in record["items"]["inventory"]["reason"]


def test_init_writes_a_pilot_that_loads(tmp_path: Path) -> None:
    from neuron_readiness import pilot
    from neuron_readiness.cli import main

    path = tmp_path / "pilot.py"
    assert main(["init", str(path)]) == 0
    loaded = pilot.load(path)
    assert loaded.cases("requests")
    assert callable(loaded.build())
    assert main(["init", str(path)]) == exits.USAGE  # it exists


def test_stored_stages_are_kept_until_the_pilot_changes(tmp_path: Path) -> None:
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    arguments = ("--device", "cpu", "--only", "effort")
    run_text(tmp_path, PLAIN, *arguments, **environ)
    stage = tmp_path / "record" / "stages" / "effort.json"
    first = stage.stat().st_mtime_ns
    run_text(tmp_path, PLAIN, *arguments, **environ)
    assert stage.stat().st_mtime_ns == first
    run_text(tmp_path, PLAIN + "effort = {'hours': 1}\n", *arguments, **environ)
    assert stage.stat().st_mtime_ns > first


def test_a_record_holds_nothing_of_another_pilot(tmp_path: Path) -> None:
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    run_text(
        tmp_path, PLAIN, "--device", "cpu", "--only", "effort", "--only", "inventory", **environ
    )
    changed = PLAIN + "effort = {'hours': 1}\n"
    _, record = run_text(tmp_path, changed, "--device", "cpu", "--only", "effort", **environ)
    assert record["items"]["effort"]["status"] == "done"
    assert record["items"]["inventory"]["status"] == "open"
    dropped, *changes = record["drift"]
    assert dropped["name"] == "stored results" and dropped["before"] == "inventory, effort"
    assert [c["name"].rsplit("/", 1)[-1] for c in changes] == ["pilot.py"]
    first = (tmp_path / "record" / "report.md").read_text().split("| area |")[0]
    assert "Earlier results of inventory, effort were dropped" in first
    assert "no valid result is stored" in record["items"]["inventory"]["reason"]
    _, record = run_text(tmp_path, PLAIN, "--device", "cpu", "--only", "effort", **environ)
    assert record["items"]["inventory"]["status"] == "done"  # which is still there


def test_drift_since_the_last_record_is_flagged() -> None:
    from neuron_readiness.record.assemble import drift

    def facts(*packages: str) -> dict[str, Any]:
        return {"environment": {"facts": {"torch": "2.13", "packages": list(packages)}}}

    before = {"items": facts("a==1", "b==1")}
    changes = drift(before, facts("a==2", "b==1", "c==1"))
    assert changes == [
        {"name": "packages.a", "before": "1", "after": "2"},
        {"name": "packages.c", "before": None, "after": "1"},
    ]
    assert drift(None, facts()) == []


@pytest.mark.full  # five processes that import PyTorch
def test_shapes_past_the_recompile_limit_are_a_named_gap(tmp_path: Path) -> None:
    text = (
        PLAIN
        + """
compile = {"backend": "eager", "dynamic": False}

def inputs(split):
    return [torch.ones(n, 4) for n in range(2, 12)] if split == "requests" else []
"""
    )
    only = ("--only", "shapes", "--only", "performance")
    environ = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    code, record = run_text(tmp_path, text, "--device", "cpu", *only, **environ)
    assert code == exits.CONTINUE
    facts = record["items"]["shapes"]["facts"]
    assert facts["past_recompile_limit"] == ["float32[10, 4]", "float32[11, 4]"]
    assert "config.recompile_limit (8)" in facts["recompile_limit"]
    first = record["decision"]["reasons"][0]
    assert (first["gate"], first["kind"]) == ("recompile_limit", "gap")
    assert "2 shapes lie past Dynamo's recompile limit" in first["text"]
    runs = record["items"]["performance"]["facts"]["runs"]
    assert "recompile_limit" in runs["cold"]["recompile_limit"]
    assert runs["reference"]["recompile_limit"] == ""
    fewer = text.replace("range(2, 12)", "range(2, 10)")
    _, record = run_text(tmp_path, fewer, "--device", "cpu", "--only", "shapes", **environ)
    assert record["items"]["shapes"]["facts"]["past_recompile_limit"] == []
    reasons = [r.get("gate") for r in record["decision"]["reasons"]]
    assert "recompile_limit" not in reasons
