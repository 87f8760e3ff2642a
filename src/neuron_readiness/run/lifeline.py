"""No process is left behind: one ends with what started it, and with it all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Asks Linux to kill this process when its parent dies, however it dies; elsewhere nothing."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (AttributeError, OSError, TypeError):
        pass


def kill_tree(pid: int) -> None:
    """Kills a process, its group, and every process below it, also those in other sessions.

    All are stopped before one is killed: a process that saw its child die could start another,
    or end in good order.
    """
    tree: list[int] = []
    while new := [one for one in (pid, *descendants(pid)) if one not in tree]:
        for one in new:
            _send(os.kill, one, signal.SIGSTOP)
        tree += new
    for one in tree:
        _send(os.killpg, one, signal.SIGKILL)
        _send(os.kill, one, signal.SIGKILL)


def _send(kill: Callable[[int, int], None], pid: int, number: signal.Signals) -> None:
    try:
        kill(pid, number)
    except (ProcessLookupError, PermissionError):  # ended since, or another user's
        pass


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` started and that those started; [] where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):  # ended since
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
