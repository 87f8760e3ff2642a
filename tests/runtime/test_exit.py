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
