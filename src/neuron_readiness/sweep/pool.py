"""Worker processes for a sweep on one machine, each replaced when it hangs or dies.

The time limit of an architecture counts processor time, so that a loaded machine does not change
what a sweep finds; one that waits for something that never comes ends after several times that on
the clock.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from neuron_readiness.run import lifeline

Task = tuple[str, str, str]  # source, architecture, family
_REUSE = 40  # architectures a process serves: what it holds of earlier ones goes with it
_LOOK_S = 0.5
_CLOCK = 10  # the limit on the clock, in limits of processor time


class Probe:
    """One worker process. ``row(task)`` always returns a row."""

    def __init__(self, device: str, timeout_s: float, environ: dict[str, str]) -> None:
        self._device, self._timeout_s, self._environ = device, timeout_s, environ
        self._process: subprocess.Popen[str] | None = None
        self._read = -1
        self._served = 0
        self._errors: IO[str] | None = None

    def row(self, task: Task) -> dict[str, Any]:
        """Probes one architecture; a time-out or a crash is a row that says so."""
        if self._process is None or self._process.poll() is not None or self._served >= _REUSE:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        started, used = time.monotonic(), _processor_seconds(self._process.pid)
        self._served += 1
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._lost(task, {}, started, "crashed", self._tail())
        text = b""
        row: dict[str, Any] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while row.get("outcome") != "done":
                spent = _processor_seconds(self._process.pid) - used
                waited = time.monotonic() - started
                if spent > self._timeout_s or waited > _CLOCK * self._timeout_s:
                    why = f"{spent:.0f} s of processor time, {waited:.0f} s on the clock"
                    return self._lost(task, row, started, "timed out", why)
                if not selector.select(_LOOK_S):
                    continue
                data = os.read(self._read, 1 << 16)
                if not data:
                    return self._lost(task, row, started, "crashed", self._tail())
                *lines, text = (text + data).split(b"\n")
                if lines:  # each line is the row so far
                    row = json.loads(lines[-1])
        return row

    def _start(self) -> None:
        self.close()
        self._read, write = os.pipe()
        self._served = 0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  lives as long as the process
        self._process = subprocess.Popen(
            self._command(write),
            env={**os.environ, **self._environ},
            pass_fds=[write],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        os.close(write)

    def _command(self, answers: int) -> list[str]:
        worker = "neuron_readiness.sweep.worker"
        return [sys.executable, "-P", "-m", worker, self._device, str(answers)]

    def _lost(
        self, task: Task, row: dict[str, Any], started: float, outcome: str, why: str
    ) -> dict[str, Any]:
        """Ends the process. Its architecture keeps what was answered by then; the column it was
        lost in is answered with no."""
        code = self._process.poll() if self._process is not None else None
        self.close()
        if outcome == "crashed" and code is not None and code < 0:
            why = f"{signal.Signals(-code).name}: {why}"
        source, name, family = task
        column = row.get("at", "loads")
        return {
            "source": source,
            "name": name,
            "family": family,
            **row,
            column: False,
            "outcome": outcome,
            "errors": {**row.get("errors", {}), column: f"{outcome}: {why}"[:600]},
            "seconds": time.monotonic() - started,
        }

    def _tail(self) -> str:
        if self._process is not None:
            self._process.wait()
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Ends the process and everything it started."""
        if self._process is None:
            return
        lifeline.kill_tree(self._process.pid)
        self._process.wait()
        os.close(self._read)
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except BrokenPipeError:  # what was left to send is for nobody
            pass
        if self._errors is not None:
            self._errors.close()
        self._process = None


def _processor_seconds(session: int) -> float:
    """What the processes of a session have used, children that ended included; 0 where the system
    does not tell (then the limit on the clock remains)."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):  # ended since
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))  # user, system, and both of ended children
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def run(
    tasks: list[Task],
    device: str,
    workers: int,
    timeout_s: float,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Probes all tasks with ``workers`` processes; ``done`` gets each row, one at a time."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()
    stop = threading.Event()
    threads_each = str(max(1, (os.cpu_count() or 1) // workers))
    # Threads that spin while they wait use processor time, the more the busier the machine is.
    environ = {"OMP_NUM_THREADS": threads_each, "OMP_WAIT_POLICY": "PASSIVE"}

    def serve() -> None:
        probe = Probe(device, timeout_s, environ)
        try:
            while not stop.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                row = probe.row(task)
                with lock:
                    done(row)
        finally:
            probe.close()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stop.set()
        for thread in threads:
            thread.join()
        raise
