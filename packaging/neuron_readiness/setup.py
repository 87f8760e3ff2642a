"""What pyproject.toml cannot say: the requirements are those of the extra `readiness`."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent.parent.parent
lines = (ROOT / "requirements" / "readiness.txt").read_text(encoding="utf-8").splitlines()
setup(
    install_requires=[line for line in lines if line and not line.startswith("#")],
    options={"egg_info": {"egg_base": "."}},  # not among the sources, which another package owns
)
