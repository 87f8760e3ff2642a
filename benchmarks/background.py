"""How long does the main thread stall while programs are lowered and compiled in the background?

A thread launches operators on shapes that are new, so that each is planned, lowered and compiled,
while the main thread reads the clock as fast as it can; the longest time between two readings is
the stall. Contenders, in turns: nothing in the background, lowering in the helper process (the
default), and lowering in the user's process (``TORCH_NEURONX_LOWERING=inprocess``), which holds the
interpreter's lock. Each in new processes with empty caches.
"""

from __future__ import annotations

import tempfile

from _harness import child, emit, interleave, parse, rounded

CODE = """
import json, sys, threading, time, warnings
warnings.simplefilter("ignore")
import torch, torch_neuronx
depth, work = int(sys.argv[1]), sys.argv[2] == "work"
x = torch.ones(32, 32, device="neuron")
(x + 1).cpu()  # the runtime and the lowering server run

def launch():
    y = x
    for i in range(depth):  # operators of new shapes: planned, lowered, compiled
        y = torch.tanh(torch.ones(i + 2, 7, device="neuron") @ torch.ones(7, 5, device="neuron"))
    torch.neuron.synchronize()

done = threading.Event()
def run():
    try:
        launch() if work else time.sleep(0.5)
    finally:
        done.set()

thread = threading.Thread(target=run)
stalls = []
before = len(torch_neuronx.compile_events())
thread.start()
last = start = time.perf_counter()
while not done.is_set():
    now = time.perf_counter()
    stalls.append(now - last)
    last = now
seconds = time.perf_counter() - start
thread.join()
events = torch_neuronx.compile_events()[before:]
stalls.sort()
print(json.dumps({"longest_s": stalls[-1], "p999_s": stalls[int(0.999 * len(stalls))],
                  "over_5_ms": sum(s > 0.005 for s in stalls), "seconds": seconds,
                  "compilations": sum(e["source"] == "compiled" for e in events)}))
"""


def main() -> None:
    options = parse(__doc__)
    depth = "3" if options.quick else "8"
    facts: dict[str, dict[str, float]] = {}

    def stall(name: str) -> float:
        with tempfile.TemporaryDirectory(prefix="torchneuron-bench-") as cache:
            result = child(
                CODE,
                depth,
                "idle" if name == "idle" else "work",
                TORCH_NEURONX_CACHE_DIR=f"{cache}/cache",
                TORCH_NEURONX_LOWERING="inprocess" if name == "inprocess" else "server",
            )
        facts[name] = result
        return float(result["longest_s"])

    names = ("idle", "server", "inprocess")
    rounds = 1 if options.quick else 5
    result = interleave({name: lambda n=name: stall(n) for name in names}, rounds)
    for name in names:
        median, times = result[name]
        emit(
            "background",
            lowering=name,
            longest_stall_ms=rounded(1e3 * median),
            longest_stalls_ms=[rounded(1e3 * t) for t in times],
            last_p999_ms=rounded(1e3 * facts[name]["p999_s"]),
            last_stalls_over_5_ms=facts[name]["over_5_ms"],
            last_seconds=rounded(facts[name]["seconds"]),
            compilations=facts[name]["compilations"],
            rounds=rounds,
        )


if __name__ == "__main__":
    main()
