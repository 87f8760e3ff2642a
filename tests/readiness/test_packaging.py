"""The tool stands alone: where torch_neuronx is another package's, it is installed without ours."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from neuron_readiness import cli, exits
from readiness.support import ROOT

SOURCES = ROOT / "src" / "neuron_readiness"


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_the_distribution_of_its_own_holds_what_the_common_one_holds() -> None:
    own, common = project(ROOT / "packaging" / "neuron_readiness"), project(ROOT)
    assert own["project"]["version"] == common["project"]["version"]
    assert own["project"]["requires-python"] == common["project"]["requires-python"]
    command = common["project"]["scripts"]["neuron-readiness"]
    assert own["project"]["scripts"] == {"neuron-readiness": command}
    data = common["tool"]["setuptools"]["package-data"]["neuron_readiness"]
    assert own["tool"]["setuptools"]["package-data"] == {"neuron_readiness": data}


def test_nothing_but_the_adapter_reaches_for_a_backend() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found |= {(path.name, n) for n in names if n.split(".")[0] in ("torch_neuronx", "nki")}
    assert found == set()  # the adapter asks importlib, and does without


@pytest.mark.parametrize("command", ["run", "report", "compare", "sweep"])
def test_what_is_not_installed_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    arguments = {"run": ["p.py"], "report": ["r"], "compare": ["a", "b"], "sweep": []}
    assert cli.main([command, *arguments[command]]) == exits.USAGE
    assert "jinja2" in (said := capsys.readouterr().err) or "jsonschema" in said
    assert "torchneuron[readiness]" in said
