"""Which hits of the static inventory are in code that ran."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

from neuron_readiness.inventory.hit import NOT_SEEN, ON_PATH, UNKNOWN, Hit
from neuron_readiness.recording.lines import Ran

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_IMPLICIT = ("forward",)  # called by the object's own call, like the names with underscores


def mark(
    hits: Iterable[Hit], ran: Callable[[str], set[Ran]], files: list[Path], later: Iterable[str]
) -> list[Hit]:
    """The hits with ``reach`` filled in. ``ran``: what ran of a file; ``later``: functions of the
    pilot that run in other stages, so that they and what they call are unknown."""
    sources = {str(f): source for f in files if (source := _Source.of(f)) is not None}
    elsewhere = _closure(set(later), list(sources.values()))
    imported = {str(getattr(m, "__file__", "")) for m in list(sys.modules.values())}

    def at(place: str) -> str:
        file, _, line = place.rpartition(":")
        source = sources.get(file)
        if source is None:
            return UNKNOWN
        return source.reach(int(line), ran(file), elsewhere, file in imported)

    return [dataclasses.replace(h, reach=_of_any(map(at, h.used or (h.place,)))) for h in hits]


def _of_any(found: Iterable[str]) -> str:
    """What holds a value matters where it is used: at any of these places."""
    places = set(found)
    return next((kind for kind in (ON_PATH, UNKNOWN) if kind in places), NOT_SEEN)


class _Source:
    """A file's functions and statements."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree

    @classmethod
    def of(cls, path: Path) -> _Source | None:
        try:
            return cls(ast.parse(path.read_text(encoding="utf-8")))
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            return None

    @cached_property
    def functions(self) -> list[Function]:
        return [n for n in ast.walk(self._tree) if isinstance(n, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [n for n in ast.walk(self._tree) if isinstance(n, ast.ClassDef)]

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return [n for n in ast.walk(self._tree) if isinstance(n, ast.stmt)]

    def reach(self, line: int, ran: set[Ran], elsewhere: set[str], imported: bool) -> str:
        around = [f for f in self.functions if _first(f) <= line <= _last(f)]
        first, last = self._span(line)
        if around:
            inner = max(around, key=lambda f: (_first(f), -_last(f)))
            own = [r for r in ran if _within(r, inner)]
            if line < _body(inner):  # a default or a decorator: it counts once the function ran
                seen = bool(own)
            else:
                seen = any(first <= r.line <= last for r in own)
            names = {_name(f) for f in around} | self._implicit(inner)
            return ON_PATH if seen else UNKNOWN if names & elsewhere else NOT_SEEN
        if any(r.name == "<module>" for r in ran):
            return ON_PATH if any(first <= r.line <= last for r in ran) else NOT_SEEN
        if not imported:
            return NOT_SEEN
        # It was imported before anything was watched: what no condition guards has run.
        return ON_PATH if self._unguarded(line) else UNKNOWN

    def _implicit(self, function: Function) -> set[str]:
        """The classes of which this is a method that is called without its name."""
        name = _name(function)
        if not (name in _IMPLICIT or name.startswith("__")):
            return set()
        return {c.name for c in self.classes if function in c.body}

    def _span(self, line: int) -> tuple[int, int]:
        """Lines of the innermost statement; of one with a body, those of its head."""
        around = [s for s in self._statements if s.lineno <= line <= _last(s)]
        if not around:
            return line, line
        inner = max(around, key=lambda s: (s.lineno, -_last(s)))
        body = getattr(inner, "body", None)
        last = max(inner.lineno, body[0].lineno - 1) if body else _last(inner)
        return (inner.lineno, last) if line <= last else (line, line)

    def _unguarded(self, line: int) -> bool:
        heads = (ast.If, ast.Try, ast.While, ast.For, ast.With, ast.Match)
        around = [s for s in self._statements if s.lineno < line <= _last(s)]
        return not any(isinstance(s, heads) for s in around)


def _first(node: Function) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(d.lineno for d in decorators)])


def _last(node: ast.stmt | Function) -> int:
    return node.end_lineno or node.lineno


def _body(node: Function) -> int:
    return node.lineno if isinstance(node, ast.Lambda) else node.body[0].lineno


def _name(node: Function) -> str:
    return "<lambda>" if isinstance(node, ast.Lambda) else node.name


def _within(ran: Ran, function: Function) -> bool:
    """Whether a line ran in the function's code or in one inside it, and not in what defines it."""
    if (ran.first, ran.name) == (_first(function), _name(function)):
        return True
    inside = _first(function) < ran.first or (ran.name.startswith("<") and ran.name != "<module>")
    return inside and _first(function) <= ran.first <= _last(function)


def _closure(names: set[str], sources: list[_Source]) -> set[str]:
    """The functions and classes of these files that the named ones may lead to, by name."""
    uses: dict[str, set[str]] = {}
    for source in sources:
        for node in (*source.functions, *source.classes):
            name = node.name if isinstance(node, ast.ClassDef) else _name(node)
            used = uses.setdefault(name, set())
            for part in ast.walk(node):
                if isinstance(part, ast.Name):
                    used.add(part.id)
                elif isinstance(part, ast.Attribute):
                    used.add(part.attr)
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += uses.get(name, set()) & uses.keys()
    return found
