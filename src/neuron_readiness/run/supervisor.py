"""Watches the worker: a stage that hangs, dies or eats the memory costs that stage only."""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from neuron_readiness.evidence import Fault
from neuron_readiness.run import faults, lifeline
from neuron_readiness.run.progress import Progress
from neuron_readiness.run.store import Store

_GRACE_S = 2.0  # for the stack dump of a hanging worker
_START_S = 300.0
_LOOK_S = 0.25
_NO_ROOM = 64 * 1024
_LAST = 400  # characters at the end of a log: the error that ended the process


@dataclasses.dataclass
class Limits:
    stage_s: float = 900.0
    memory_bytes: int | None = None


def available_bytes() -> int | None:
    """Memory that is free to use, or None where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


@dataclasses.dataclass
class Outcome:
    """How the stages ended. ``lost``: a stage that gave no result, with the fault. ``key``: what a
    result must have been made with to count, None where the pilot could not be loaded."""

    key: str | None = None
    ended: list[str] = dataclasses.field(default_factory=list)
    lost: dict[str, Fault] = dataclasses.field(default_factory=dict)
    kept: list[str] = dataclasses.field(default_factory=list)
    general: list[Fault] = dataclasses.field(default_factory=list)
    forked: dict[str, Fault] = dataclasses.field(default_factory=dict)  # of a stage with no result
    interrupted: bool = False
    # Stage -> what has changed since its stored result, which therefore does not count.
    dropped: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)


def supervise(
    pilot: Path,
    options: dict[str, Any],
    store: Store,
    names: list[str],
    force: list[str],
    limits: Limits,
    progress: Progress,
) -> Outcome:
    """Runs the stages, with a new worker after each that had to be ended."""
    outcome = Outcome()
    left = list(names)
    forced = list(force)
    while left:
        worker = _Worker(pilot, options, store, left, forced)
        try:
            done, lost = worker.watch(limits, progress, outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
            return outcome
        finally:
            worker.end()
        forced = [n for n in forced if n not in done]
        if lost is None:
            return outcome
        stage, fault = lost
        outcome.lost[stage] = fault
        if stage in ("environment", "pilot", "?"):  # nothing can run
            return outcome
        left = [n for n in left if n not in done and n != stage]
    return outcome


class _Worker:
    def __init__(
        self,
        pilot: Path,
        options: dict[str, Any],
        store: Store,
        names: list[str],
        force: list[str],
    ) -> None:
        self._read, write = os.pipe()
        self._log = (store.out / "log.txt").open("ab")
        self._log_path = store.out / "log.txt"
        self._begin = self._log_path.stat().st_size
        request = {
            "pilot": str(pilot.resolve()),
            "options": options,
            "out": str(store.out),
            "stages": names,
            "force": force,
            "event_fd": write,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "neuron_readiness.run.worker", json.dumps(request)],
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        os.close(write)

    def watch(
        self, limits: Limits, progress: Progress, outcome: Outcome
    ) -> tuple[list[str], tuple[str, Fault] | None]:
        """Until the worker ends: finished stages, and the one that was lost, if any."""
        done: list[str] = []
        current, since = "?", time.monotonic()
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while True:
                for _ in selector.select(_LOOK_S):
                    data = os.read(self._read, 65536)
                    if not data:
                        return done, self._ended(current)
                    *lines, text = (text + data).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        current = self._event(event, current, done, progress, outcome)
                        if event["event"] != "forked":  # no progress
                            since = time.monotonic()
                fault = self._over(limits, current, time.monotonic() - since)
                if fault is not None:
                    progress.end(current, fault.kind)
                    return done, (current, fault)
                if self._process.poll() is not None and not selector.select(0):
                    return done, self._ended(current)  # a grandchild holds the pipe open

    def _event(
        self,
        event: dict[str, Any],
        current: str,
        done: list[str],
        progress: Progress,
        outcome: Outcome,
    ) -> str:
        kind = event["event"]
        if kind == "forked":
            text = f"the pilot forked in stage {current} ({event['where']})"
            outcome.forked.setdefault(current, Fault("forked", text, "workload"))
            return current
        if kind == "dropped":
            outcome.dropped[event["of"]] = event["changes"]
            return current
        if kind == "key":
            outcome.key = event["key"]
            return current
        name: str = event["stage"]
        if kind == "begin":
            progress.begin(name)
            return name
        if event.get("forked"):
            outcome.forked.pop(name, None)  # its result holds it
        done.append(name)
        outcome.ended.append(name)
        if kind == "kept":
            outcome.kept.append(name)
        progress.end(name, event.get("status", "kept from an earlier run"))
        return "?"

    def _over(self, limits: Limits, stage: str, seconds: float) -> Fault | None:
        if seconds > (limit := limit_of(stage, limits)):
            where = self._stack()
            done = "did not begin a stage" if stage == "?" else "did not end"
            text = f"{_called(stage)} {done} within {limit:g} s"
            return Fault("hung", text, "unknown", where)
        if limits.memory_bytes is not None:
            resident = _resident(self._process.pid)
            if resident > limits.memory_bytes:
                text = f"{_called(stage)} held {resident} bytes; the limit is {limits.memory_bytes}"
                return Fault("leaks", text, "workload")
        return None

    def _ended(self, stage: str) -> tuple[str, Fault] | None:
        code = self._process.wait()
        if code == 0 and stage == "?":
            return None
        tail = self._tail()
        return stage, end_of(stage, code, tail, _free_bytes(self._log_path.parent))

    def _stack(self) -> str:
        """Where the worker is, by its own stack dump."""
        if not hasattr(signal, "SIGUSR1") or self._process.poll() is not None:
            return ""
        before = self._log_path.stat().st_size
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + _GRACE_S
        while time.monotonic() < end and self._log_path.stat().st_size == before:
            time.sleep(0.05)
        return self._tail()

    def _tail(self) -> str:
        try:
            with self._log_path.open("rb") as file:
                file.seek(max(self._begin, self._log_path.stat().st_size - 4000))
                return file.read().decode(errors="replace")
        except OSError as error:  # the pilot removed it
            return f"no log: {error}"

    def end(self) -> None:
        """Kills the worker and everything it started."""
        lifeline.kill_tree(self._process.pid)
        self._process.wait()
        os.close(self._read)
        self._log.close()


def limit_of(stage: str, limits: Limits) -> float:
    """Seconds that a stage may take. The worker's start is none: a limit that is meant for the
    pilot must not end it while it imports PyTorch on a slow machine."""
    return max(limits.stage_s, _START_S) if stage == "?" else limits.stage_s


def end_of(stage: str, code: int, tail: str, free_bytes: int | None) -> Fault:
    """What it means that a worker ended with this status, on a disk with so much room."""
    if code < 0:
        name = signal.Signals(-code).name
        killer = " (out of memory?)" if code == -signal.SIGKILL else ""
        text = f"{_called(stage)} died of {name}{killer}"
    else:
        last = (tail.strip().splitlines() or ["it wrote nothing"])[-1]
        text = f"{_called(stage)} ended the process with status {code}: {last}"[:400]
    if free_bytes is not None and free_bytes < _NO_ROOM:  # neither a result nor an error fits
        text += f"; {free_bytes} bytes are free on the record's disk"
        return Fault("disk-full", text, "infrastructure", tail)
    if faults.says_disk_full(tail[-_LAST:]):
        return Fault("disk-full", text, "infrastructure", tail)
    return Fault("crashed", text, "unknown", tail)


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _called(stage: str) -> str:
    """A stage in words; "?" is the worker between stages, or before the first."""
    return "the worker" if stage == "?" else f"stage {stage}"


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
