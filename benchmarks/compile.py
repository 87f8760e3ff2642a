"""torch.compile on ``neuron`` against CPU eager and Inductor, model by model.

For each model and dtype, a training step (forward, backward, AdamW):

- ``cache`` cold and warm: seconds to the first step in a new process, by the wall and of processor
  time (children included), of these Dynamo's, AOTAutograd's and the backend's own (which for
  ``neuron`` overlap: it compiles in several threads while the program goes on); ``aot-warm`` is
  warm with AOTAutograd's cache, which Inductor always has (``TORCH_NEURONX_AOT_CACHE=1``).
- ``column`` portable and host: the steady step of all three contenders in turns in one process,
  by the wall (median) and by processor time (best), without and with
  ``TORCH_NEURONX_HOST_KERNELS=1``.
- peak memory of a steady step: on ``neuron`` the most bytes of live buffers and executables'
  temporaries, on the CPU what PyTorch's profiler sees allocated beside parameters, buffers,
  optimizer state and inputs; and the process's high-water mark.

At the end the geometric means of each column. ``--decode`` measures generation instead: tokens per
second of transformers' Llama with its ``StaticCache``, prefill and loop, and processor time of a
step of the loop (extra ``clients``).

    python benchmarks/compile.py [--quick] [--models gpt,vit] [--dtypes float32,bfloat16] [--decode]
"""

from __future__ import annotations

import argparse
import math
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

    step.lasting = [*model.parameters(), *model.buffers(), *inputs]
    step.optimizer = optimizer
    return step

def model_dtype(x):
    return getattr(torch, dtype) if x.is_floating_point() else x.dtype

def peak_bytes(contender, step):
    # Of one more step.
    if contender == "neuron":
        torch.neuron.reset_peak_memory_stats()
        step()
        return torch.neuron.max_memory_allocated()
    state = [v for s in step.optimizer.state.values() for v in s.values()]
    live = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in step.lasting + state if isinstance(t, torch.Tensor)}
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = sum(live.values())
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
"""

FIRST = (
    COMMON
    + """
contender = sys.argv[5]

def used():
    seconds = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in seconds)

step = make(contender)
before = used()
first = step()
first_cpu = used() - before
rest = [step() for _ in range(max(2, rounds))]
before = used()
step()
steady_cpu = used() - before
from torch._dynamo.utils import compilation_time_metrics as metrics

def spent(name):
    return sum(metrics.get(name, ()))

# The backend's own share: of what AOTAutograd and Dynamo measure it is inside.
inner = {"inductor": "compile_fx.<locals>.fw_compiler_base"}.get(contender)
aot = spent("create_aot_dispatcher_function") - (spent(inner) if inner else 0)
result = {"dynamo_s": spent("_compile.compile_inner") - spent("OutputGraph.call_user_compiler"),
          "aot_s": aot, "backend_s": spent("compile_fx_inner"),
          "first_s": first, "steady_s": sorted(rest)[len(rest) // 2],
          "over_cpu_s": first_cpu - steady_cpu, "peak_mb": peak_bytes(contender, step) / 2**20,
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

DECODE = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
import torch, torch_neuronx
dtype, new = getattr(torch, sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

BATCH, PROMPT, LENGTH = 1, 64, 256
config = LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
                     num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=LENGTH)
prompt = torch.randint(512, (BATCH, PROMPT), generator=torch.Generator().manual_seed(1))

def make(contender):
    device = "neuron" if contender == "neuron" else "cpu"
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(dtype).to(device).eval()
    run = model.forward if contender == "eager" else torch.compile(
        model.forward, backend=contender, dynamic=False)
    cache = StaticCache(config=config, max_cache_len=LENGTH)
    tokens, first = prompt.to(device), torch.arange(PROMPT, device=device)

    @torch.no_grad()
    def generate():
        cache.reset()
        start = time.perf_counter()
        logits = run(input_ids=tokens, position_ids=first[None], past_key_values=cache,
                     use_cache=True).logits
        token = logits[:, -1:].argmax(-1)
        token.cpu()
        prefill, busy = time.perf_counter(), time.process_time()
        position = torch.full((1, 1), PROMPT, device=device)
        said = [token]
        for _ in range(new):
            logits = run(input_ids=token, position_ids=position, past_key_values=cache,
                         use_cache=True).logits
            token = logits[:, -1:].argmax(-1)
            position = position + 1
            said.append(token)
        text = torch.cat(said, 1).cpu().tolist()
        end, busy = time.perf_counter(), time.process_time() - busy
        speeds = PROMPT * BATCH / (prefill - start), new * BATCH / (end - prefill)
        return *speeds, 1e3 * busy / new, text

    return generate

runs = {c: make(c) for c in sys.argv[4].split(",")}
texts = {c: [run() for _ in range(2)][-1][-1] for c, run in runs.items()}
speeds = {c: [] for c in runs}
for i in range(int(sys.argv[3])):
    for c in list(runs) if i % 2 == 0 else reversed(list(runs)):
        speeds[c].append(runs[c]()[:3])

def median(values):
    return sorted(values)[len(values) // 2]

print(json.dumps({c: {"prefill_per_s": median([a for a, _, _ in s]),
                      "decode_per_s": median([b for _, b, _ in s]),
                      "decode_cpu_ms": min(c for _, _, c in s),
                      "same_text": texts[c] == texts["eager"]} for c, s in speeds.items()}))
"""

CONTENDERS = "eager,inductor,neuron"
PORTABLE = ("gpt", "llama", "bert", "vit")  # the aim of the portable column speaks of these


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
    for dtype in dtypes:
        if chosen.decode:
            decode(dtype, rounds, "8" if options.quick else "128")
            continue
        ratios = [measure(name, dtype, rounds) for name in models]
        for column in ("portable", "host"):
            for names in (PORTABLE, tuple(_models.CASES)):
                of = {n: r[column] for n, r in zip(models, ratios, strict=True) if n in names}
                if of:
                    emit(
                        "compile",
                        case="geometric mean",
                        dtype=dtype,
                        column=column,
                        models=",".join(of),
                        against_faster=rounded(math.prod(of.values()) ** (1 / len(of))),
                        largest=max(of, key=lambda n: of[n]),
                    )


def decode(dtype: str, rounds: str, tokens: str) -> None:
    """One line a contender."""
    speeds = child(DECODE, dtype, tokens, rounds, CONTENDERS)
    speeds.pop("stderr")
    for contender, facts in speeds.items():
        facts = {k: rounded(v) if isinstance(v, float) else v for k, v in facts.items()}
        emit("compile", case="decode", dtype=dtype, contender=contender, **facts)


def first_steps(name: str, dtype: str, rounds: str, caches: dict[str, str]) -> None:
    """Cold, warm and, for ``neuron``, warm with AOTAutograd's cache; then how they compare."""
    here = os.path.dirname(os.path.abspath(__file__))
    first: dict[str, dict[str, Any]] = {}
    got = child(FIRST, here, name, dtype, rounds, "eager")
    first["eager"] = got
    for contender in ("inductor", "neuron"):
        states = ("cold", "warm") + (("aot-fill", "aot-warm") if contender == "neuron" else ())
        for state in states:
            more = {"TORCH_NEURONX_AOT_CACHE": "1"} if state.startswith("aot") else {}
            got = child(FIRST, here, name, dtype, rounds, contender, **caches, **more)
            got.pop("stderr")
            first[f"{contender}_{state}"] = got
            facts = {k: rounded(v) if isinstance(v, float) else v for k, v in got.items()}
            if state != "aot-fill":
                emit("compile", case=name, dtype=dtype, contender=contender, cache=state, **facts)

    def ratio(key: str, other: str, of: str) -> float:
        return rounded(first[key][of] / (first[other][of] or 1e-9))

    for one in first.values():
        one["over_s"] = one["first_s"] - one["steady_s"]
    pairs = {
        "cold_against_inductor": ("neuron_cold", "inductor_cold"),
        "warm_against_cold": ("neuron_warm", "neuron_cold"),
        "aot_warm_against_cold": ("neuron_aot-warm", "neuron_cold"),
        "warm_against_inductor": ("neuron_warm", "inductor_warm"),
        "aot_warm_against_inductor": ("neuron_aot-warm", "inductor_warm"),
    }
    emit(
        "compile",
        case=name,
        dtype=dtype,
        contender="all",
        **{k: ratio(*pair, "over_s") for k, pair in pairs.items()},
        **{f"{k}_cpu": ratio(*pair, "over_cpu_s") for k, pair in pairs.items()},
        backend_cold_against_inductor=ratio("neuron_cold", "inductor_cold", "backend_s"),
        backend_warm_against_cold=ratio("neuron_warm", "neuron_cold", "backend_s"),
        eager_peak_mb=rounded(first["eager"]["peak_mb"]),
        peak_against_eager=ratio("neuron_warm", "eager", "peak_mb"),
        inductor_peak_against_eager=ratio("inductor_warm", "eager", "peak_mb"),
        process_peak_against_eager=ratio("neuron_warm", "eager", "process_peak_mb"),
    )


def measure(name: str, dtype: str, rounds: str) -> dict[str, float]:
    """All lines of one model: of each column, processor time against the faster contender."""
    here = os.path.dirname(os.path.abspath(__file__))
    ratios = {}
    with tempfile.TemporaryDirectory() as root:
        caches = {
            "TORCH_NEURONX_CACHE_DIR": os.path.join(root, "neuron"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(root, "inductor"),
        }
        first_steps(name, dtype, rounds, caches)
        for column, on in (("portable", "0"), ("host", "1")):
            switch = {"TORCH_NEURONX_HOST_KERNELS": on}
            steady = child(STEADY, here, name, dtype, rounds, CONTENDERS, **caches, **switch)
            wall, busy = steady["wall"], steady["cpu"]
            ratios[column] = busy["neuron"] / min(busy["eager"], busy["inductor"])
            emit(
                "compile",
                case=name,
                dtype=dtype,
                column=column,
                **{f"{c}_ms": rounded(1e3 * s) for c, s in wall.items()},
                **{f"{c}_cpu_ms": rounded(1e3 * s) for c, s in busy.items()},
                against_faster=rounded(wall["neuron"] / min(wall["eager"], wall["inductor"])),
                cpu_against_faster=rounded(ratios[column]),
            )
    return ratios


if __name__ == "__main__":
    main()
