"""No process outlives its run: what a pilot started ends with it, in whatever session it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from neuron_readiness.run import lifeline

# Starts one process in a session of its own; both hold standard output open until they end.
PARENT = """
import sys
from subprocess import Popen
child = Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
child.wait()
"""
CHILD = """
import signal
print("ready", flush=True)
signal.pause()
"""
WITH_PARENT = "from neuron_readiness.run import lifeline\nlifeline.end_with_parent()\n" + CHILD


def start(child: str, parent: str = PARENT) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_tree_is_killed_across_sessions() -> None:
    process = start(CHILD)
    [child] = lifeline.descendants(process.pid)
    assert os.getsid(child) != os.getsid(process.pid)
    lifeline.kill_tree(process.pid)
    assert process.communicate(timeout=60)[0] == ""  # nobody holds the output any more
    assert process.returncode == -signal.SIGKILL


def test_all_are_stopped_before_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killpg = os.killpg

    def killpg_and_wait(pid: int, number: int) -> None:
        try:
            killpg(pid, number)
        finally:
            time.sleep(0.3)  # long enough for a parent to see it and start the child anew

    monkeypatch.setattr(os, "killpg", killpg_and_wait)
    process = start(CHILD, PARENT.replace("child.wait()", "child.wait(); Popen(child.args)"))
    lifeline.kill_tree(process.pid)
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == -signal.SIGKILL


def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    process = start(WITH_PARENT)
    process.kill()
    assert process.communicate(timeout=60)[0] == ""
