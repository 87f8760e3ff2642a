"""Which lines of the workload's own files run, seen by Python's trace hook."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """A line that ran, in the code (function, class body, module) that begins at ``first``."""

    first: int
    name: str
    line: int


class LineRecorder:
    """``with recorder:`` notes lines of files below ``folder`` that no installer put there, and of
    those that ``also`` names, in this process, on every thread that begins meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder.resolve()}/"
        self._also: set[str] = set()
        self._wanted: dict[str, set[Ran] | None] = {}
        self.blind = ""  # why nothing could be seen

    def also(self, files: Iterable[Path]) -> None:
        self._also |= {str(f) for f in files}
        self._wanted = {n: s for n, s in self._wanted.items() if s is not None}

    def of(self, file: str) -> set[Ran]:
        """What ran of a file, by its resolved name."""
        return self._wanted.get(file) or set()

    def __enter__(self) -> LineRecorder:
        if sys.gettrace() is not None:
            self.blind = "another tracer, of a debugger or for coverage, is at work"
        else:
            threading.settrace(self._call)
            sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.blind:
            sys.settrace(None)
            threading.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        name = code.co_filename
        if name in self._wanted:
            seen = self._wanted[name]
        else:
            seen = self._wanted[name] = self._begin(name)
        if seen is None:
            return None
        first, called = code.co_firstlineno, code.co_name

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                seen.add(Ran(first, called, frame.f_lineno))
            return line

        return line

    def _begin(self, name: str) -> set[Ran] | None:
        if name.startswith("<"):
            return None
        file = str(Path(name).resolve())
        own = file.startswith(self._folder) and "-packages/" not in file
        if not own and file not in self._also:
            return None
        known = self._wanted.get(file)  # reached by another spelling of its name
        seen = known if known is not None else set()
        self._wanted[file] = seen
        return seen
