"""What is left when a program ends."""

from __future__ import annotations

import subprocess
import sys

BAD_INDEX = """
import torch
x = torch.arange(3.0, device="neuron")
torch.neuron.synchronize()
y = x[torch.tensor([7], device="neuron")]
from torch_neuronx import _C
while _C.num_queued(0):  # until the launch is made, which takes a compile
    torch.empty(1, device="neuron").zero_()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


def test_an_error_that_nobody_asked_for_is_said() -> None:
    done = run(BAD_INDEX)
    assert "neuron:0 had an error when the program ended: IndexError" in done.stderr
    assert "index 7 is out of bounds for dimension 0 with size 3" in done.stderr


def test_a_clean_program_ends_silently() -> None:
    done = run("import torch; x = torch.ones(3, device='neuron') + 1; x.cpu(); x + x")
    assert done.returncode == 0
    assert done.stderr == ""


MANY_ENDS = """
import os, sys, threading
import torch
children = []
for i in range(8):
    pid = os.fork()  # before the runtime starts, so that each child starts its own
    if not pid:
        break
    children.append(pid)
if children and pid:
    statuses = [os.waitpid(child, 0)[1] for child in children]
    print(len(statuses), [s for s in statuses if s])
else:
    def work():
        x = torch.ones(4, device="neuron", requires_grad=True)
        (x * x).sum().backward()
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    work()
"""


def test_programs_end_while_autograd_threads_let_go() -> None:
    """Several at once, so that threads are slow: none dies on the way out."""
    done = run(MANY_ENDS)
    assert done.stderr == ""
    assert done.stdout.strip() == "8 []"
