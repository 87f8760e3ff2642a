"""No process outlives its run: what a pilot started ends with it, in whatever session it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from neuron_readiness.run import lifeline

# Starts one process in a session of its own; both hold standard output open until they end.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
child.wait()
"""
CHILD = """
import signal
print("ready", flush=True)
signal.pause()
"""
WITH_PARENT = "from neuron_readiness.run import lifeline\nlifeline.end_with_parent()\n" + CHILD


def start(child: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE, text=True
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


def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    process = start(WITH_PARENT)
    process.kill()
    assert process.communicate(timeout=60)[0] == ""
