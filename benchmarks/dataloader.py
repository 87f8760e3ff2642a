"""Does `DataLoader(num_workers=2)` work after eager work on the device, without a warning?

Workers are forked from a process whose runtime runs. Seconds are those of reading every batch, in
turns: no device work before, and device work before. A child that does not end is ended after
``LIMIT_S`` and reported as a deadlock.
"""

from __future__ import annotations

import subprocess

from _harness import child, emit, interleave, parse, rounded

LIMIT_S = 300.0
CODE = """
import json, sys, time, warnings
import torch
from torch.utils.data import DataLoader, TensorDataset

device = sys.argv[1]
batches = int(sys.argv[2])
if device == "neuron":
    x = torch.ones(64, 64, device="neuron").requires_grad_()
    (x @ x).tanh().sum().backward()
    torch.neuron.synchronize()
data = TensorDataset(torch.arange(8.0 * batches).view(-1, 1))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    start = time.perf_counter()
    total = 0.0
    for (rows,) in DataLoader(data, batch_size=8, num_workers=2):
        total += rows.to(device).sum().item()
    seconds = time.perf_counter() - start
assert total == sum(range(8 * batches)), total
print(json.dumps({"seconds": seconds, "warnings": [str(w.message) for w in caught]}))
"""


def main() -> None:
    options = parse(__doc__)
    batches = "4" if options.quick else "100"
    seen: dict[str, list[str]] = {"cpu": [], "neuron": []}
    stderr: dict[str, list[str]] = {"cpu": [], "neuron": []}

    def seconds(device: str) -> float:
        result = child(CODE, device, batches, timeout_s=LIMIT_S)
        seen[device] += result["warnings"]
        stderr[device] += [t for t in result["stderr"].splitlines() if "fork" in t.lower()]
        return float(result["seconds"])

    rounds = 1 if options.quick else 5
    try:
        result = interleave({d: lambda d=d: seconds(d) for d in seen}, rounds)
    except subprocess.TimeoutExpired as error:
        emit("dataloader", device="neuron", deadlock=True, limit_s=error.timeout)
        return
    for device, (median, _) in result.items():
        emit(
            "dataloader",
            device=device,
            deadlock=False,
            seconds=rounded(median),
            warnings=sorted(set(seen[device])),
            messages=sorted(set(stderr[device])),
            rounds=rounds,
        )


if __name__ == "__main__":
    main()
