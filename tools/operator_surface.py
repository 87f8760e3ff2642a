"""How much of PyTorch's dense operator surface has a kernel on the device.

The surface: overloads of torch's packaged ``native_functions.yaml`` with both a CPU and a CUDA
kernel that are neither composite nor structured delegates (629 in torch 2.13). An overload is
native when ``overloads.json`` has a row for it that is not of kind "graph", or when a C++ kernel
is registered for it on PrivateUse1. The text report goes on with what the committed OpInfo run
measured (docs/opinfo_summary.json).

    python tools/operator_surface.py [--json] [--missing]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "src/torch_neuronx/compiler/overloads.json"
SUMMARY = ROOT / "docs/opinfo_summary.json"

# First match names the family; what none matches is "dense".
FAMILIES = (
    ("foreach", r"_foreach_"),
    ("optimiser", r"_fused_(adam|sgd|adagrad)|_amp_"),
    ("special functions", r"special_"),
    ("fft", r"_fft_"),
    (
        "quantised",
        r"quant|q_per_channel|qint|_int_mm|_int4|_int8|int4pack|_scaled_|fbgemm"
        r"|choose_q",
    ),
    ("nested", r"nested|jagged|padded_dense"),
    ("sparse", r"sparse|coalesce|compressed|_convert_indices|sspaddmm"),
    (
        "linear algebra",
        r"linalg_(?!cross)|cholesky|lu_unpack|geqrf|ormqr|orgqr|triangular"
        r"|svd",
    ),
    ("attention", r"attention|sdp|transformer|multi_head"),
    (
        "random",
        r"rand|normal|bernoulli|multinomial|exponential|geometric|cauchy|poisson|gamma"
        r"|dirichlet|binomial|dropout|rrelu",
    ),
    ("convolution and pooling", r"conv|pool|im2col|col2im"),
    ("sampling and padding", r"upsample|grid_sampler|_pad[123]d"),
    ("loss", r"loss"),
    ("embedding", r"embedding"),
    ("norm", r"norm"),
    ("recurrent", r"lstm|gru|rnn"),
)


def family(name: str) -> str:
    """The family of ``aten::name``."""
    return next((f for f, pattern in FAMILIES if re.search(pattern, name)), "dense")


def _entries() -> list[dict[str, Any]]:
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return entries


def training_forms() -> list[str]:
    """What optimisers and gradient scaling call beside the surface: ``_foreach_*``, ``_fused_*``
    of the optimisers, ``_amp_*``."""
    pattern = re.compile(r"_foreach_|_fused_(adam|sgd|adagrad)|_amp_")
    functions = (entry["func"].split("(")[0] for entry in _entries())
    return sorted("aten::" + name for name in functions if pattern.match(name))


def surface() -> list[str]:
    """Qualified names of the overloads, sorted."""
    names = []
    for entry in _entries():
        keys = {key.strip() for listed in entry.get("dispatch") or {} for key in listed.split(",")}
        if (
            "structured_delegate" not in entry
            and {"CPU", "CUDA"} <= keys
            and not any(key.startswith("Composite") for key in keys)
        ):
            names.append("aten::" + entry["func"].split("(")[0])
    return sorted(names)


def native(names: list[str]) -> set[str]:
    """Those of ``names`` that have a kernel on the device."""
    import torch_neuronx  # noqa: F401  registers the kernels

    rows = {r["name"] for r in json.loads(ROWS.read_text()) if r.get("kind") != "graph"}
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {n for n in names if n in rows or has(n, "PrivateUse1")}


def report() -> dict[str, Any]:
    """Counts by family and the overloads without a kernel."""
    names, training = surface(), training_forms()
    have = native(names)
    total, got = Counter(map(family, names)), Counter(map(family, have))
    return {
        "torch": torch.__version__,
        "total": len(names),
        "native": len(have),
        "families": {f: {"native": got[f], "total": total[f]} for f in sorted(total)},
        "training forms": {"native": len(native(training)), "total": len(training)},
        "missing": [n for n in names if n not in have],
    }


def print_measured(summary: dict[str, Any]) -> None:
    """The cases of the committed OpInfo run: executed, passed, excluded, by kind and dtype."""
    wall = f", {summary['wall_s'] / 60:.0f} minutes" if "wall_s" in summary else ""
    print(f"\nOpInfo cases, torch {summary['torch']}{wall}")
    print(f"{'kind':15}{'dtype':11}{'executed':>9}{'passed':>8}{'fallback':>9}{'excluded':>9}")
    total: Counter[str] = Counter()
    for kind, dtypes in summary["totals"].items():
        for dtype, counts in dtypes.items():
            print(_measured_row(kind, dtype, counts))
            total.update(counts)
    print(_measured_row("all", "", total))


def _measured_row(kind: str, dtype: str, counts: Mapping[str, int]) -> str:
    executed = sum(n for outcome, n in counts.items() if outcome != "skipped")
    passed, fell, excluded = (counts.get(o, 0) for o in ("passed", "fallback", "excluded"))
    return f"{kind:15}{dtype:11}{executed:9}{passed:8}{fell:9}{excluded:9}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--missing", action="store_true", help="list what has no kernel")
    options = parser.parse_args()
    result = report()
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    for name, counts in result["families"].items():
        print(f"{name:26}{counts['native']:4} / {counts['total']}")
    print(f"{'all':26}{result['native']:4} / {result['total']}")
    training = result["training forms"]
    print(f"{'_foreach, _fused, _amp':26}{training['native']:4} / {training['total']}")
    print_measured(json.loads(SUMMARY.read_text()))
    if options.missing:
        for name in result["missing"]:
            print(f"  {name}  ({family(name)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
