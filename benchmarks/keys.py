"""How many executables do positions cost? Aim: at most 3 each (decision D4).

``index``: ``x[i] * 2`` for every i. ``decode``: a key-value cache that is written and read at every
position of a decoding loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import torch_neuronx
from _harness import emit, parse, platform, rounded


def index(count: int) -> Callable[[int], object]:
    x = torch.arange(float(count)).to("neuron")
    return lambda i: x[i] * 2


def decode(count: int) -> Callable[[int], object]:
    keys = torch.zeros(2, 4, count, 8).to("neuron")
    new = torch.ones(2, 4, 1, 8).to("neuron")

    def step(position: int) -> torch.Tensor:
        keys[:, :, position : position + 1] = new
        return keys[:, :, position] + 1

    return step


@torch.no_grad()
def main() -> None:
    options = parse(__doc__)
    facts = platform()
    loops: dict[str, tuple[Callable[[int], Callable[[int], object]], int]] = {
        "index": (index, 50 if options.quick else 1000),
        "decode": (decode, 20 if options.quick else 500),
    }
    for name, (make, count) in loops.items():
        step = make(count)
        torch.neuron.synchronize()
        before = len(torch_neuronx.compile_events())
        seconds = 0.0
        for _ in range(2):  # the second time is without compilations
            start = time.perf_counter()
            for i in range(count):
                step(i)
            torch.neuron.synchronize()
            seconds = time.perf_counter() - start
        events = torch_neuronx.compile_events()[before:]
        emit(
            "keys",
            case=name,
            positions=count,
            executables=len(events),
            names=[e["name"] for e in events],
            us_per_position=rounded(1e6 * seconds / count),
            **facts,
        )


if __name__ == "__main__":
    main()
