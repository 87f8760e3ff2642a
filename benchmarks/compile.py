"""torch.compile on ``neuron`` against CPU eager and Inductor, model by model.

For each model and dtype: seconds to the first step (forward, backward, AdamW) in a new process with
a cold and with a warm cache, of these Dynamo's, AOTAutograd's and the backend's own (which for
``neuron`` overlap: it compiles in several threads while the program goes on), the steady step of
all three in turns in one process, by wall and by CPU time, and peak memory:
the process's high-water mark, and for ``neuron`` the model's peak of live buffers. ``--decode``
adds tokens per second of a Llama-style decoding loop with a static cache.

    python benchmarks/compile.py [--quick] [--models gpt,vit] [--dtypes float32,bfloat16]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from _harness import child, emit, parse, rounded

COMMON = """
import json, os, resource, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
name, dtype, rounds = sys.argv[2], sys.argv[3], int(sys.argv[4])
import torch
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
from _models import CASES, Block

def make(contender):
    torch.manual_seed(0)
    model, batch = CASES[name]()
    model = model.to(getattr(torch, dtype))
    inputs = [x.to(model_dtype(x)) for x in batch()]
    device = "neuron" if contender == "neuron" else "cpu"
    model, inputs = model.to(device), [x.to(device) for x in inputs]
    run = model if contender == "eager" else torch.compile(model, backend=contender)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        start = time.perf_counter()
        loss = run(*inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if device == "neuron":
            torch.neuron.synchronize()
        return time.perf_counter() - start

    return step

def model_dtype(x):
    return getattr(torch, dtype) if x.is_floating_point() else x.dtype
"""

FIRST = (
    COMMON
    + """
contender = sys.argv[5]
step = make(contender)
first = step()
rest = [step() for _ in range(max(2, rounds))]
from torch._dynamo.utils import compilation_time_metrics as metrics

def spent(name):
    return sum(metrics.get(name, ()))

# The backend's own share: of what AOTAutograd and Dynamo measure it is inside.
inner = {"inductor": "compile_fx.<locals>.fw_compiler_base"}.get(contender)
aot = spent("create_aot_dispatcher_function") - (spent(inner) if inner else 0)
result = {"dynamo_s": spent("_compile.compile_inner") - spent("OutputGraph.call_user_compiler"),
          "aot_s": aot, "backend_s": spent("compile_fx_inner"),
          "first_s": first, "steady_s": sorted(rest)[len(rest) // 2],
          "process_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
if contender == "neuron":
    import torch_neuronx
    from torch_neuronx.compiler import ledger
    events = torch_neuronx.compile_events()
    result["compilations"] = sum(e["source"] == "compiled" for e in events)
    parts = [s for g in ledger.graphs() for s in g.specialisations]
    passes = sum(g.passes_s for g in ledger.graphs())
    result["aot_s"] -= passes
    result["backend_s"] = passes + sum(
        s.plan_s + s.lower_s + s.compile_s + s.load_s for s in parts)
    result["temporary_mb"] = max((s.temporary_bytes or 0 for s in parts), default=0) / 2**20
    result["live_peak_mb"] = torch.neuron.max_memory_allocated() / 2**20
    result["fallback"] = torch_neuronx.get_fallback_ops()
print(json.dumps(result))
"""
)

STEADY = (
    COMMON
    + """
steps = {c: make(c) for c in sys.argv[5].split(",")}
for step in steps.values():
    step(), step()
times, busy = {c: [] for c in steps}, {c: [] for c in steps}
for i in range(rounds):
    for c in list(steps) if i % 2 == 0 else reversed(list(steps)):
        start = time.process_time()
        times[c].append(steps[c]())
        busy[c].append(time.process_time() - start)
print(json.dumps({"wall": {c: sorted(t)[len(t) // 2] for c, t in times.items()},
                  "cpu": {c: min(t) for c, t in busy.items()}}))
"""
)

DECODE = (
    COMMON
    + """
def tokens_per_second(contender, new=rounds * 4, length=128):
    device = "neuron" if contender == "neuron" else "cpu"
    torch.manual_seed(0)
    block = Block(256, 8, causal=True, kv_heads=2, rope=True).to(device).eval()
    run = block if contender == "eager" else torch.compile(block, backend=contender)
    cache = tuple(torch.zeros(1, 2, length, 32, device=device) for _ in range(2))
    x = torch.randn(1, 1, 256, device=device)
    with torch.no_grad():
        for warm in (True, False):
            start = time.perf_counter()
            for i in range(2 if warm else new):
                x = run(x, cache, torch.tensor([i], device=device)).tanh()
            x.sum().item()
    return new / (time.perf_counter() - start)

print(json.dumps({c: tokens_per_second(c) for c in sys.argv[5].split(",")}))
"""
)


def main() -> None:
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument("--models", default="")
    extra.add_argument("--dtypes", default="")
    extra.add_argument("--decode", action="store_true")
    chosen, rest = extra.parse_known_args()
    sys.argv[1:] = rest
    options = parse(__doc__)
    import _models

    quick = ("moe",) if options.quick else tuple(_models.CASES)
    models = chosen.models.split(",") if chosen.models else quick
    dtypes = chosen.dtypes.split(",") if chosen.dtypes else ["float32"]
    rounds = str(options.rounds)
    here = os.path.dirname(os.path.abspath(__file__))
    for name in models:
        for dtype in dtypes:
            measure(here, name, dtype, rounds)
    if chosen.decode:
        speeds = child(DECODE, here, "llama", "float32", rounds, "eager,inductor,neuron")
        speeds.pop("stderr")
        emit("compile", case="decode", **{f"{c}_per_s": rounded(v) for c, v in speeds.items()})


def measure(here: str, name: str, dtype: str, rounds: str) -> None:
    """All lines of one model."""
    with tempfile.TemporaryDirectory() as root:
        caches = {
            "TORCH_NEURONX_CACHE_DIR": os.path.join(root, "neuron"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(root, "inductor"),
        }
        first: dict[str, dict[str, Any]] = {}
        for contender in ("inductor", "neuron"):
            for cache in ("cold", "warm"):
                got = child(FIRST, here, name, dtype, rounds, contender, **caches)
                got.pop("stderr")
                first[f"{contender}_{cache}"] = got
                facts = {k: rounded(v) if isinstance(v, float) else v for k, v in got.items()}
                emit("compile", case=name, dtype=dtype, contender=contender, cache=cache, **facts)
        steady = child(STEADY, here, name, dtype, rounds, "eager,inductor,neuron", **caches)
        wall, busy = steady["wall"], steady["cpu"]

    def over(key: str) -> float:
        return first[key]["first_s"] - first[key]["steady_s"]

    emit(
        "compile",
        case=name,
        dtype=dtype,
        contender="all",
        cache="warm",
        **{f"{c}_ms": rounded(1e3 * s) for c, s in wall.items()},
        **{f"{c}_cpu_ms": rounded(1e3 * s) for c, s in busy.items()},
        against_faster=rounded(wall["neuron"] / min(wall["eager"], wall["inductor"])),
        cpu_against_faster=rounded(busy["neuron"] / min(busy["eager"], busy["inductor"])),
        backend_cold_against_inductor=rounded(
            first["neuron_cold"]["backend_s"] / (first["inductor_cold"]["backend_s"] or 1e-9)
        ),
        cold_against_inductor=rounded(over("neuron_cold") / over("inductor_cold")),
        warm_against_cold=rounded(over("neuron_warm") / over("neuron_cold")),
    )


if __name__ == "__main__":
    main()
