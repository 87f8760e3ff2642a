"""What does adaptive eager bring? Per-op and adaptive `neuron`, and CPU eager, in turns.

``chain20``: twenty element-wise operators on 1M elements. ``optimizer``: AdamW's step of a model of
100 parameters (CPU: its foreach form). ``gpt``, ``llama``, ``bert``: a training step, also compiled
with torch.compile; ``decode``: one token of a Llama-style loop with a static cache. ``first``: the
first training step of a new process with an empty cache. ``exactness``: the training step with
``TORCH_NEURONX_FUSE_REDUCTIONS=1``, whose results may differ. Milliseconds, medians; ``same`` says
whether per-op and adaptive gave the same bits.

    python benchmarks/adaptive.py [--quick] [--cases chain20,gpt]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_neuronx
from _harness import child, emit, interleave, parse, platform, rounded
from _models import CASES, Block
from torch_neuronx.compiler import session

Step = Callable[[], torch.Tensor]
SETTLE = 8  # steps in which loops are found and compiled


def chain20(device: str) -> Step:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(1 << 20, generator=generator).to(device) for _ in range(2))

    def step() -> torch.Tensor:
        z = x
        for _ in range(5):
            z = z * y
            z = z + x
            z = z - 0.25
            z = z / 1.5
        return z

    return step


def optimizer(device: str) -> Step:
    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.randn(64, 64, generator=generator).to(device)) for _ in range(100)
    ]
    for p in parameters:
        p.grad = torch.randn(64, 64, generator=generator).to(device)
    adam = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)

    def step() -> torch.Tensor:
        adam.step()
        return parameters[0].detach()

    return step


def training(name: str, device: str, compiled: bool = False) -> Step:
    torch.manual_seed(0)
    model, batch = CASES[name]()
    inputs = tuple(x.to(device) for x in batch())
    model = model.to(device)
    run: Any = torch.compile(model, backend="neuron") if compiled else model
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        loss = run(*inputs).float().square().mean()
        loss.backward()
        adam.step()
        adam.zero_grad()
        return loss.detach()

    return step


def decode(device: str, compiled: bool = False) -> Step:
    torch.manual_seed(0)
    block = Block(256, 8, causal=True, kv_heads=2, rope=True).to(device).eval()
    x = torch.randn(1, 1, 256).to(device)
    cache = tuple(torch.zeros(1, 2, 128, 32).to(device) for _ in range(2))
    run: Any = torch.compile(block, backend="neuron") if compiled else block
    positions = [torch.tensor([i]).to(device) for i in range(64)]
    count = 0

    @torch.no_grad()
    def step() -> torch.Tensor:
        nonlocal count
        count += 1
        return run(x, cache, positions[count % 64])  # type: ignore[no-any-return]

    return step


def timed(step: Step, calls: int, mode: str) -> Callable[[], float]:
    """Milliseconds a call; ``mode`` "cpu" or one of eager execution's."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            step()
        if mode != "cpu":
            torch.neuron.synchronize()
        return 1e3 * (time.perf_counter() - start) / calls

    def once() -> float:
        if mode == "cpu":
            return run()
        with torch_neuronx.eager_mode(mode):
            return run()

    return once


def settle(step: Step, mode: str) -> torch.Tensor:
    """The last result of the first steps."""
    with torch_neuronx.eager_mode(mode):
        for _ in range(SETTLE):
            result = step()
            torch.neuron.synchronize()
            session.compiler().drain()
        return result.cpu()


def measure(name: str, rounds: int, calls: int) -> None:
    makers: dict[str, Callable[..., Step]] = {
        "chain20": chain20, "optimizer": optimizer, "decode": decode,
    }  # fmt: skip
    make = makers.get(name, lambda *a: training(name, *a))
    contenders = {"cpu": timed(make("cpu"), calls, "cpu")}
    last = {}
    for mode in ("per-op", "adaptive"):
        step = make("neuron")
        last[mode] = settle(step, mode)
        contenders[mode] = timed(step, calls, mode)
    if name not in ("chain20", "optimizer"):
        step = make("neuron", True)
        settle(step, "per-op")
        contenders["compiled"] = timed(step, calls, "per-op")
    before = torch_neuronx.eager_stats()
    result = interleave(contenders, rounds)
    after = torch_neuronx.eager_stats()
    ms = {k.replace("-", "_"): v[0] for k, v in result.items()}
    steps = rounds * calls
    emit(
        "adaptive",
        case=name,
        **{f"{k}_ms": rounded(v) for k, v in ms.items()},
        **{f"against_{k}": rounded(ms["adaptive"] / v) for k, v in ms.items() if k != "adaptive"},
        same=bool(torch.equal(last["per-op"], last["adaptive"])),
        fused_operators=(after["fused_operators"] - before["fused_operators"]) / steps,
        fused_launches=(after["fused_launches"] - before["fused_launches"]) / steps,
        rounds=rounds,
        calls=calls,
        **platform(),
    )


FIRST = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch, torch_neuronx
from adaptive import SETTLE, training, settle, timed
import warnings; warnings.simplefilter("ignore")
step = training(sys.argv[2], "neuron")
mode = sys.argv[3]
with torch_neuronx.eager_mode(mode):
    start = time.perf_counter()
    step().item()
    torch.neuron.synchronize()
    first = time.perf_counter() - start
settle(step, mode)
run = timed(step, 1, mode)
print(json.dumps({"first_s": first, "steady_ms": sorted(run() for _ in range(5))[2]}))
"""


def first_steps(rounds: int) -> None:
    here = str(Path(__file__).resolve().parent)

    def seconds(mode: str) -> float:
        with tempfile.TemporaryDirectory() as cache:
            got = child(FIRST, here, "gpt", mode, TORCH_NEURONX_CACHE_DIR=cache)
        return float(got["first_s"])

    result = interleave({m: lambda m=m: seconds(m) for m in ("per-op", "adaptive")}, rounds)
    cold = {m.replace("-", "_"): v[0] for m, v in result.items()}
    emit(
        "adaptive",
        case="first",
        **{f"{m}_ms": rounded(1e3 * s) for m, s in cold.items()},
        against_per_op=rounded(cold["adaptive"] / cold["per_op"]),
        rounds=rounds,
    )


def exactness(rounds: int) -> None:
    here = str(Path(__file__).resolve().parent)

    def steady(free: str) -> float:
        got = child(FIRST, here, "gpt", "adaptive", TORCH_NEURONX_FUSE_REDUCTIONS=free)
        return float(got["steady_ms"])

    result = interleave({free: lambda f=free: steady(f) for free in "01"}, rounds)
    emit(
        "adaptive",
        case="exactness",
        exact_ms=rounded(result["0"][0]),
        free_ms=rounded(result["1"][0]),
        cost=rounded(result["0"][0] / result["1"][0]),
        rounds=rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--cases", default="chain20,optimizer,gpt,llama,bert,decode,first,exactness"
    )
    chosen, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    options = parse(__doc__)
    for case in chosen.cases.split(","):
        if case == "first":
            first_steps(1 if options.quick else 5)
        elif case == "exactness":
            exactness(1 if options.quick else 5)
        else:
            small = case in ("chain20", "optimizer", "decode")
            calls = (20 if small else 2) if not options.quick else 1
            measure(case, options.rounds, calls)


if __name__ == "__main__":
    main()
