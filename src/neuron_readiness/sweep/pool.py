"""Worker processes for a sweep on one machine, each replaced when it hangs or dies."""

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
from typing import IO, Any

Task = tuple[str, str, str]  # source, architecture, family
_REUSE = 40  # architectures a process serves: what it holds of earlier ones goes with it


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
        started = time.monotonic()
        self._served += 1
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._lost(task, started, "crashed", self._tail())
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while b"\n" not in text:
                left = self._timeout_s - (time.monotonic() - started)
                if left <= 0 or not selector.select(left):
                    return self._lost(task, started, "timed out", f"{self._timeout_s:g} s")
                data = os.read(self._read, 1 << 16)
                if not data:
                    return self._lost(task, started, "crashed", self._tail())
                text += data
        row: dict[str, Any] = json.loads(text)
        return {**row, "outcome": "done"}

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
        return [sys.executable, "-m", worker, self._device, str(answers)]

    def _lost(self, task: Task, started: float, outcome: str, why: str) -> dict[str, Any]:
        """Ends the process and makes the row of the architecture that it was lost with."""
        code = self._process.poll() if self._process is not None else None
        self.close()
        if outcome == "crashed" and code is not None and code < 0:
            why = f"{signal.Signals(-code).name}: {why}"
        source, name, family = task
        return {
            "source": source,
            "name": name,
            "family": family,
            "outcome": outcome,
            "errors": {"process": f"{outcome}: {why}"[:600]},
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
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
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
    environ = {"OMP_NUM_THREADS": threads_each}

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
