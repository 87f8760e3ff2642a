"""The documents: links that lead somewhere, and generated files that are fresh.

``docs/environment.md`` is compared in test_config.py, ``docs/dependencies.md`` in
test_packaging.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(ROOT.glob("docs/*.md"))
# [text](target); code spans and fenced blocks hold no links.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def broken_links(path: Path) -> list[str]:
    """Relative links of a document that lead to no file, or to no heading of it."""
    text = CODE.sub("", path.read_text())
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue  # another site's: not ours to keep, and tests use no network
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        missing = not file.is_relative_to(ROOT) or not file.exists()
        if missing or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# A `title`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](gone.md) [c](there.md#a-title) [d](there.md#other) [e](../out.md)\n"
        "[f](https://example.org) `[g](code.md)`\n```\n[h](block.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "there.md#other", "../out.md"]


def test_architecture_names_every_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    layers = {path.parent.name for path in ROOT.glob("csrc/*/*")}
    layers |= {path.parent.name for path in ROOT.glob("src/torch_neuronx/*/__init__.py")}
    assert {"runtime", "dynamo"} <= layers
    assert [name for name in sorted(layers) if f"`{name}`" not in text] == []


def test_table_of_overloads_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_overloads.py", "--check"],
        cwd=ROOT,
        # The file says what is registered: it is made without our own registrations.
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compatibility_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "tools/generate_compatibility.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
