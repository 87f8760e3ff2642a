"""The revision that a row of a sweep names is that of the tool's own sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from neuron_readiness.sweep import revision


def git(folder: Path, *arguments: str) -> str:
    ask = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
    return subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()


def test_a_changed_checkout_is_told_from_its_revision(tmp_path: Path) -> None:
    file = tmp_path / "tool.py"
    assert revision.of_sources(file) is None  # no checkout
    git(tmp_path, "init", "-q")
    file.write_text("a")
    assert revision.of_sources(file) is None  # not tracked: an environment in a repository
    git(tmp_path, "add", "tool.py")
    git(tmp_path, "commit", "-q", "-m", "a")
    clean = revision.of_sources(file)
    assert clean and git(tmp_path, "rev-parse", "HEAD").startswith(clean)
    file.write_text("b")
    assert revision.of_sources(file) == clean + "+"
