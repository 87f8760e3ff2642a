"""How much of PyTorch's dense operator surface has a kernel on the device.

The surface: overloads of torch's packaged ``native_functions.yaml`` with both a CPU and a CUDA
kernel that are neither composite nor structured delegates (629 in torch 2.13). An overload is
native when ``overloads.json`` has a row for it that is not of kind "graph", or when a C++ kernel
is registered for it on PrivateUse1.

    python tools/operator_surface.py [--json] [--missing]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torchgen
import yaml

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "src/torch_neuronx/compiler/overloads.json"

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


def surface() -> list[str]:
    """Qualified names of the overloads, sorted."""
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    names = []
    for entry in yaml.safe_load(path.read_text()):
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
    names = surface()
    have = native(names)
    total, got = Counter(map(family, names)), Counter(map(family, have))
    return {
        "torch": torch.__version__,
        "total": len(names),
        "native": len(have),
        "families": {f: {"native": got[f], "total": total[f]} for f in sorted(total)},
        "missing": [n for n in names if n not in have],
    }


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
    if options.missing:
        for name in result["missing"]:
            print(f"  {name}  ({family(name)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
