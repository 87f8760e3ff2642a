"""What does the installed package add to `import torch`? Milliseconds, in new processes in turns.

Without: ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``.
"""

from __future__ import annotations

from _harness import child, emit, interleave, parse, rounded

CODE = """
import json, sys, time
start = time.perf_counter()
import torch
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "loaded": "torch_neuronx._C" in sys.modules,
                  "heavy": [m for m in ("jax", "torch._dynamo", "sympy") if m in sys.modules]}))
"""


def main() -> None:
    options = parse(__doc__)
    heavy: dict[str, list[str]] = {}

    def seconds(autoload: str) -> float:
        result = child(CODE, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
        if result["loaded"] != (autoload == "1"):
            raise RuntimeError(f"autoload={autoload}, but the package's state is {result}")
        heavy[autoload] = result["heavy"]
        return float(result["seconds"])

    seconds("1"), seconds("0")  # bytecode and the file cache
    result = interleave({"with": lambda: seconds("1"), "without": lambda: seconds("0")},
                        options.rounds)  # fmt: skip
    with_ms, without_ms = (1e3 * result[name][0] for name in ("with", "without"))
    paired = sorted(
        1e3 * (a - b) for a, b in zip(result["with"][1], result["without"][1], strict=True)
    )
    emit(
        "import_time",
        with_ms=rounded(with_ms),
        without_ms=rounded(without_ms),
        added_ms=rounded(with_ms - without_ms),
        added_paired_median_ms=rounded(paired[len(paired) // 2]),
        added_modules=sorted(set(heavy["1"]) - set(heavy["0"])),
        rounds=options.rounds,
    )


if __name__ == "__main__":
    main()
