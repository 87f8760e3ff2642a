"""``docs/clients.md`` is the page of ``docs/clients.json``, the notes of a run."""

from __future__ import annotations

import importlib.util
import json
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
