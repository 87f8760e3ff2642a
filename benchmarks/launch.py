"""What does launching a small operator cost? PyTorch CPU against `neuron`, microseconds a call.

Autograd is off. Calls are issued in a row and waited for once at the end, so the time is what the
program sees: the host's part, or the device's where that is longer. ``adaptive_us`` is the
amortised cost of a call under adaptive eager, once the loop is fused; results that nobody keeps are
then not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_neuronx
from _harness import emit, interleave, parse, platform, rounded, seconds_per_call
from torch_neuronx.compiler import session


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

    many = [torch.ones(8, device=device) for _ in range(100)]
    parameters = [torch.nn.Parameter(torch.ones(8, device=device)) for _ in range(100)]
    for p in parameters:
        p.grad = torch.ones(8, device=device)
    adam = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    return {
        "add": lambda: a + b,
        "mul_changing_number": multiply,
        "view_add": lambda: base[1] + b,
        "add_in_place": lambda: total.add_(b),
        "matmul_64": lambda: square @ square,
        "sum": lambda: a.sum(),
        "foreach_add_100": lambda: torch._foreach_add(many, 1.0),
        "optimizer_100": adam.step,
    }


@torch.no_grad()
def main() -> None:
    options = parse(__doc__)
    calls = 50 if options.quick else 2000
    facts = platform()
    by_device = {device: cases(device) for device in ("cpu", "neuron")}

    def seconds(name: str, device: str, mode: str, calls: int) -> float:
        with torch_neuronx.eager_mode(mode):
            return seconds_per_call(by_device[device][name], calls, device)

    ways = {"cpu": ("cpu", "per-op"), "neuron": ("neuron", "per-op"),
            "adaptive": ("neuron", "adaptive")}  # fmt: skip
    for name in by_device["cpu"]:
        count = max(calls // 100, 1) if name.endswith("_100") else calls
        for device, mode in ways.values():
            seconds(name, device, mode, 100)
            session.compiler().drain()
        result = interleave(
            {way: lambda n=name, w=what, c=count: seconds(n, *w, c) for way, what in ways.items()},
            options.rounds,
        )
        cpu, neuron, adaptive = (1e6 * result[way][0] for way in ways)
        emit(
            "launch",
            case=name,
            cpu_us=rounded(cpu),
            neuron_us=rounded(neuron),
            neuron_best_us=rounded(1e6 * min(result["neuron"][1])),
            ratio=rounded(neuron / cpu),
            adaptive_us=rounded(adaptive),
            rounds=options.rounds,
            calls=count,
            **facts,
        )


if __name__ == "__main__":
    main()
