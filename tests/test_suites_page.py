"""``docs/suites.md`` is the page of ``docs/suites.parquet``, the outcomes of runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites_tool", ROOT / "tools" / "suites.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(tool: ModuleType) -> None:
    assert (ROOT / "docs" / "suites.md").read_text() == tool.page(tool.read(tool.CASES))


def test_no_case_failed(tool: ModuleType) -> None:
    rows = tool.read(tool.CASES)
    assert {row["file"] for row in rows} == {Path(name).name for name in tool._files()}
    assert [row["case"] for row in rows if row["outcome"] == "failed"] == []
    assert all(row["revision"] and row["day"] for row in rows if row["outcome"] != "not run")


FILE = """
import pytest

@pytest.mark.parametrize("i", range({count}))
def test_a(i): assert i != {bad}
def test_a_b(): pytest.xfail("as known")
def test_c(): pytest.skip("no such form")
"""


def test_outcomes_are_kept_replaced_and_dropped(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "CASES", tmp_path / "cases.parquet")
    folder = tmp_path / "tests" / "suites"
    monkeypatch.setattr(tool, "SUITES", folder)
    folder.mkdir(parents=True)

    def run(text: str, *arguments: str) -> dict[str, Any]:
        (folder / "test_x_db.py").write_text(text)
        sys.modules.pop("test_x_db", None)  # pytest imports a module of a name once
        options = ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null"]
        tool.run([str(folder / "test_x_db.py"), *options, *arguments])
        return {row["case"]: row["outcome"] for row in tool.read(tool.CASES)}

    left_out = ("--deselect", "tests/suites/test_x_db.py::test_a[2]")
    one = run(FILE.format(count=3, bad=1), *left_out)
    assert one == {
        "test_a[0]": "passed",
        "test_a[1]": "failed",
        "test_a[2]": "not run",
        "test_a_b": "declared",
        "test_c": "skipped",
    }
    text = tool.page(tool.read(tool.CASES))
    assert "| test_a | 3 | 1 | 0 | 1 | 0 | 1 | 50.0% |" in text
    assert "| test_a_b | 1 | 0 | 1 | 0 | 0 | 0 | 0.0% |" in text
    assert "- `test_a[1]`: assert 1 != 1" in text and "- `test_a_b`: as known" in text
    # Only what is left is run: 1 stays failed although it would pass now.
    two = run(FILE.format(count=3, bad=7), "--left")
    assert two["test_a[1]"] == "failed" and two["test_a[2]"] == "passed"
    three = run(FILE.format(count=2, bad=7), "-k", "test_a[1]")
    assert three["test_a[1]"] == "passed" and "test_a[2]" not in three
