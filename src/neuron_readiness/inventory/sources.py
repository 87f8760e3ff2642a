"""Which files belong to a workload: the pilot, what it names, and what it imports of its own."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def of_workload(pilot: Path, named: list[str], model: Any = None) -> list[Path]:
    """Python files on the path of a request: the pilot's, those under ``named`` (relative to the
    pilot), modules beside it that they import, and the file of the model's class. Installed
    libraries are left out, except the model's own file."""
    todo = [pilot.resolve()]
    for name in named:
        place = (pilot.parent / name).resolve()
        todo += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    home = sys.modules.get(type(model).__module__) if model is not None else None
    if isinstance(home, ModuleType) and getattr(home, "__file__", None):
        source = Path(str(home.__file__))
        if "/torch/nn/" not in source.as_posix():
            todo.append(source.resolve())
    seen: list[Path] = []
    while todo:
        path = todo.pop(0)
        if path in seen or not path.is_file():
            continue
        seen.append(path)
        if path.is_relative_to(pilot.resolve().parent) and "site-packages" not in path.parts:
            todo += _beside(path)
    return seen


def _beside(path: Path) -> list[Path]:
    """Modules in the file's own folder that it imports."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names |= {base, *(f"{base}.{a.name}".strip(".") for a in node.names)}
    found = []
    for name in sorted(filter(None, names)):
        place = path.parent.joinpath(*name.split("."))
        found += [p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()]
    return found
