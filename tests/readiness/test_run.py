"""A pilot's way from the file to the decision, and what is kept when it goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_readiness import exits

CLASSIFIER = """
import torch

def model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).eval()

def inputs(split):
    make = torch.Generator().manual_seed(1)
    return [torch.randn(8, 16, generator=make) for _ in range(2)] if split == "requests" else []
"""

HIDDEN = """
import torch
from neuron_readiness.pilot import Case

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        if x.shape[0] == 4:  # only the rare request
            y = y + torch.linalg.eigvals(torch.eye(4, device=x.device)).real
        return y

def model():
    return Model().eval()

def inputs(split):
    if split != "requests":
        return []
    return [Case("common", (torch.ones(2, 4),), frequency=99),
            Case("rare", (torch.ones(4, 4),), frequency=1)]
"""


def run(folder: Path, pilot: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and record of one run; whatever happens there is a record."""
    path = folder / "pilot.py"
    path.write_text(pilot)
    command = [sys.executable, "-m", "neuron_readiness.cli", "run", str(path)]
    done = subprocess.run(
        [*command, "--out", str(folder / "record"), "--quiet", "--repeats", "3", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )
    record = folder / "record" / "record.json"
    assert record.is_file(), done.stdout + done.stderr
    return done.returncode, json.loads(record.read_text())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("classifier")
    return *run(folder, CLASSIFIER), folder / "record"


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


def test_a_host_operator_that_only_rare_requests_reach_is_a_named_gap(tmp_path: Path) -> None:
    code, record = run(tmp_path, HIDDEN, "--only", "execution")
    assert record["items"]["execution"]["facts"]["unaccepted_host_operators"] == 1
    findings = json.dumps(record["items"]["execution"]["findings"])
    assert "aten::linalg_eig" in findings
    assert "(rare), 1.0% of the traffic" in findings
    assert record["decision"]["verdict"] == "continue"
    assert code == exits.CONTINUE


def test_a_pilot_that_raises_keeps_what_was_learnt(tmp_path: Path) -> None:
    pilot = (
        CLASSIFIER + "\n\ndef preprocess(*args, **kwargs):\n    raise OSError('no such corpus')\n"
    )
    code, record = run(tmp_path, pilot, "--only", "environment", "--only", "execution")
    assert code == exits.FAULTS["pilot-raised"]
    assert "no such corpus" in json.dumps(record["faults"])
    assert record["items"]["environment"]["status"] == "done"


def test_a_device_that_is_absent(tmp_path: Path) -> None:
    code, record = run(tmp_path, CLASSIFIER, "--device", "xpu", "--only", "environment")
    assert code == exits.FAULTS["device-absent"]
    assert record["decision"]["verdict"] != "proceed"


def test_init_writes_a_pilot_that_loads(tmp_path: Path) -> None:
    from neuron_readiness import pilot
    from neuron_readiness.cli import main

    path = tmp_path / "pilot.py"
    assert main(["init", str(path)]) == 0
    loaded = pilot.load(path)
    assert loaded.cases("requests")
    assert callable(loaded.build())
    assert main(["init", str(path)]) == exits.USAGE  # it exists


def test_inventory_reads_code_and_not_comments(tmp_path: Path) -> None:
    from neuron_readiness.inventory import static

    source = tmp_path / "work.py"
    source.write_text(
        "import torch.cuda as cu\nimport torch\n# torch.cuda.synchronize()\n"
        "text = 'model.cuda()'\ncu.synchronize()\nx = torch.ones(1, device='cuda:0')\n"
    )
    hits = static.scan(source, "neuron")
    assert sorted(hit.line for hit in hits) == [5, 6]
