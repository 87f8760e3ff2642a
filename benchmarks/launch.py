"""What does launching a small operator cost? PyTorch CPU against `neuron`, microseconds a call.

Autograd is off. Calls are issued in a row and waited for once at the end, so the time is what the
program sees: the host's part, or the device's where that is longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from _harness import emit, interleave, parse, platform, rounded, seconds_per_call


def cases(device: str) -> dict[str, Callable[[], Any]]:
    a, b = torch.ones(8, device=device), torch.ones(8, device=device)
    base = torch.ones(4, 8, device=device)
    square = torch.full((64, 64), 1 / 64, device=device)
    total = torch.zeros(8, device=device)
    numbers = [1.0 + i / 64 for i in range(64)]
    count = 0

    def multiply() -> torch.Tensor:
        nonlocal count
        count += 1
        return a * numbers[count % 64]

    return {
        "add": lambda: a + b,
        "mul_changing_number": multiply,
        "view_add": lambda: base[1] + b,
        "add_in_place": lambda: total.add_(b),
        "matmul_64": lambda: square @ square,
    }


@torch.no_grad()
def main() -> None:
    options = parse(__doc__)
    calls = 50 if options.quick else 2000
    facts = platform()
    by_device = {device: cases(device) for device in ("cpu", "neuron")}
    for name in by_device["cpu"]:
        for device, functions in by_device.items():
            seconds_per_call(functions[name], 100, device)
        result = interleave(
            {
                device: lambda f=functions[name], d=device: seconds_per_call(f, calls, d)
                for device, functions in by_device.items()
            },
            options.rounds,
        )
        cpu, neuron = (1e6 * result[d][0] for d in ("cpu", "neuron"))
        emit(
            "launch",
            case=name,
            cpu_us=rounded(cpu),
            neuron_us=rounded(neuron),
            neuron_best_us=rounded(1e6 * min(result["neuron"][1])),
            ratio=rounded(neuron / cpu),
            rounds=options.rounds,
            calls=calls,
            **facts,
        )


if __name__ == "__main__":
    main()
