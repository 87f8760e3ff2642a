"""A process of its own for one task of a stage: fresh state, killed with all its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from neuron_readiness.run import lifeline


class ChildFailed(RuntimeError):
    """A child ended badly; ``returncode`` is negative for a signal, None for a time-out."""

    def __init__(self, text: str, returncode: int | None) -> None:
        super().__init__(text)
        self.returncode = returncode


class Child:
    """``Child(request, environ, folder).answer(timeout_s)``. Output goes to files below ``folder``:
    a pipe that nobody reads could stop the child. ``forked`` gets the lines at which it forked."""

    def __init__(
        self, request: dict[str, Any], environ: dict[str, str], folder: Path, forked: list[str]
    ) -> None:
        self._task = request["task"]
        self._forked = forked
        self._folder = tempfile.TemporaryDirectory(prefix=f"{self._task}-", dir=folder)
        self._answer = Path(self._folder.name) / "answer.json"
        self._errors = Path(self._folder.name) / "errors.txt"
        # As they happen: a task that is killed answers nothing.
        self._events = Path(self._folder.name) / "events.jsonl"
        self._events.touch()
        request = {**request, "answer": str(self._answer), "events": str(self._events)}
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "neuron_readiness.run.tasks", json.dumps(request)],
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None if it was killed after ``timeout_s``. Nothing survives."""
        try:
            code: int | None = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        lifeline.kill_tree(self._process.pid)
        self._process.wait()
        return code

    def answer(self, timeout_s: float) -> Any:
        """The task's JSON answer.

        Raises:
            ChildFailed: it raised, was killed, or took longer.
        """
        code = self.wait(timeout_s)
        try:
            if code is None:
                raise ChildFailed(f"{self._task} took longer than {timeout_s:g} s", None)
            if code != 0 or not self._answer.exists():
                tail = self._errors.read_text(errors="replace").strip().splitlines()
                reason = "\n".join(tail[-12:])
                last = tail[-1] if tail else "no output"
                raise ChildFailed(f"{self._task} exit {code}: {last}\n{reason}", code)
            return json.loads(self._answer.read_text())
        finally:
            self.close()

    def close(self) -> None:
        """Ends the process, if it still runs, and removes its files."""
        self.wait(0)
        if self._events.exists():  # not closed before
            told = [json.loads(line) for line in self._events.read_text().splitlines()]
            self._forked += [e["where"] for e in told if e["where"] not in self._forked]
        self._folder.cleanup()
