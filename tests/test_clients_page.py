"""``docs/clients.md`` is the page of ``docs/clients.json``, the notes of a run."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("clients_tool", ROOT / "tools" / "clients.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh() -> None:
    assert (ROOT / "docs" / "clients.md").read_text() == tool().page()


def test_outcomes_are_noted_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tool()
    monkeypatch.setattr(module, "NOTES", tmp_path / "notes.json")
    folder = tmp_path / "tests" / "clients"
    folder.mkdir(parents=True)
    file = folder / "test_example_client.py"
    head = '"""Example: a thing."""\nimport pytest\nCLIENTS = ("pytest",)\n'
    head += "pytestmark = pytest.mark.clients\n"
    file.write_text(head + "@pytest.mark.parametrize('i', [0, 1])\ndef test_a(i): assert i\n")
    assert module.run([str(file), "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]) == 1
    note = json.loads(module.NOTES.read_text())[file.name]
    assert note["outcomes"] == {"test_a": {"failed": 1, "passed": 1}}
    assert note["clients"] == {"pytest": pytest.__version__}
    assert "`test_example_client.py::test_a`: 1 failed" in module.page()
    assert f"| pytest {pytest.__version__} | a thing. " in module.page()

    # A part that is run again replaces what it ran, and a test that is gone goes.
    file.write_text(head + "def test_b(): pass\ndef test_c(): pass\n")
    options = [str(file), "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    for name in ("test_b", "test_c"):
        sys.modules.pop("test_example_client", None)
        assert module.run([*options, "-k", name]) == 0
    note = json.loads(module.NOTES.read_text())[file.name]
    assert note["outcomes"] == {"test_b": {"passed": 1}, "test_c": {"passed": 1}}


def test_every_client_has_a_noted_outcome_and_none_failed() -> None:
    """A test file that was added, and never run where its library is, is no evidence."""
    notes = json.loads((ROOT / "docs" / "clients.json").read_text())
    files = sorted((ROOT / "tests" / "clients").glob("test_*.py"))
    assert sorted(notes) == [file.name for file in files]
    for file in files:
        functions = set(re.findall(r"^def (test_\w+)", file.read_text(), re.M))
        assert notes[file.name]["outcomes"].keys() == functions, file.name
        for name, counts in notes[file.name]["outcomes"].items():
            assert set(counts) == {"passed"}, f"{file.name}::{name}: {counts}"
        assert all(notes[file.name]["clients"].values()), file.name
