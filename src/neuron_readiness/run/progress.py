"""A progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class Progress:
    """``with Progress(total) as bar: bar.begin(name); bar.end(name, "done")``."""

    def __init__(self, total: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._total = total
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._count = 0

    def __enter__(self) -> Progress:
        if not self._quiet and self._stream.isatty():
            from tqdm import tqdm

            form = "{desc:<24} {bar} {n_fmt}/{total_fmt} {elapsed}"
            self._bar = tqdm(total=self._total, file=self._stream, bar_format=form)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin(self, name: str) -> None:
        if self._bar is not None:
            self._bar.set_description_str(name)

    def end(self, name: str, status: str) -> None:
        self._count += 1
        if self._bar is not None:
            self._bar.update(1)
        elif not self._quiet:
            print(f"[{self._count}/{self._total}] {name}: {status}", file=self._stream, flush=True)
