"""What the compiler tells a person: one line for who waits, one per event for who asked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from torch_neuronx import config

_log = logging.getLogger(__name__)


def progress_line(names: Iterable[str], waited_s: float) -> str:
    """The line: what is compiled, how much more, how long it took so far."""
    listed = list(names)
    first = listed[0] if listed else "an operator"
    more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
    return f"torchneuron: compiling {first}{more} ({waited_s:.0f} s) ..."


def say(line: str, *, level: int, terminal: bool = False) -> None:
    """Log a line; print it if TORCH_NEURONX_LOG_LEVEL is at least ``level``.

    ``terminal``: also print it where a person reads along. A job whose output goes to a file does
    not find our lines in it unless it asked for them.
    """
    _log.info("%s", line)
    wanted = config.get("TORCH_NEURONX_LOG_LEVEL") >= level
    if sys.stderr is not None and (wanted or (terminal and sys.stderr.isatty())):
        print(line, file=sys.stderr, flush=True)
