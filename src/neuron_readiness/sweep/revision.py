"""Which sources a sweep ran."""

from __future__ import annotations

import subprocess
from pathlib import Path


def of_sources(file: Path = Path(__file__)) -> str | None:
    """The git revision of the checkout that ``file`` is part of, with "+" where tracked files
    differ from it. None where it is part of none (an environment inside somebody's repository is
    not tracked there), or without git."""
    try:
        if _git(file, "ls-files", "--error-unmatch", file.name) is None:
            return None
        return _git(file, "describe", "--always", "--exclude=*", "--dirty=+")
    except (OSError, subprocess.TimeoutExpired):
        return None


def _git(file: Path, *arguments: str) -> str | None:
    ask = ["git", "-C", str(file.resolve().parent), *arguments]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or None if done.returncode == 0 else None
