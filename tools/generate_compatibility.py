"""Writes docs/compatibility.md and src/torch_neuronx/compatibility.json.

What is *declared* comes from torch's packaged schemas, overloads.json and the kernels that the
extension registers; what is *measured* comes from docs/opinfo_summary.json, which ``tools/opinfo.py
--summary`` writes after a run. One row an operator, its in-place and out= forms included.

    python tools/generate_compatibility.py [--check]
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nested._internal.ops as jagged
import torchgen
import yaml

from torch_neuronx import _C  # the package registers the kernels

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "src/torch_neuronx/compiler/overloads.json"
SUMMARY = ROOT / "docs/opinfo_summary.json"
JSON = ROOT / "src/torch_neuronx/compatibility.json"
PAGE = ROOT / "docs/compatibility.md"

# Other vendors' operators: no program of ours reaches them.
FOREIGN = re.compile(r"mkldnn|cudnn|miopen|_mps|fbgemm|xnnpack|_cuda|cufft|_nnpack|_cslt|vulkan")
# Registered for the device as fallbacks: overloads.cc says why.
HOST_MEMORY = {
    "aten::_saturate_weight_to_fp16", "aten::choose_qparams_optimized",
    "aten::_grid_sampler_2d_cpu_fallback", "aten::_grid_sampler_2d_cpu_fallback_backward",
    "aten::_sobol_engine_draw", "aten::_sobol_engine_ff_", "aten::_sobol_engine_scramble_",
    "aten::_sobol_engine_initialize_state_",
}  # fmt: skip
# PyTorch composes these in Python, for nested tensors of the jagged layout.
JAGGED = {op.name() for op in jagged.JAGGED_OPS_TABLE}
ORDER = (
    "float32", "bfloat16", "float16", "float64", "complex64", "int64", "int32", "uint8", "bool",
)  # fmt: skip
SHORT = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "complex64": "c64",
    "int64": "i64", "int32": "i32", "uint8": "u8", "bool": "bool",
}  # fmt: skip


def operators() -> dict[str, list[str]]:
    """Overloads by operator; in-place forms stand with their functional one."""
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    overloads = [e["func"].split("(")[0] for e in entries]
    names = {o.split(".")[0] for o in overloads}
    result: dict[str, list[str]] = {}
    for overload in overloads:
        name = overload.split(".")[0]
        if FOREIGN.search(name):
            continue
        inplace = name.endswith("_") and not name.endswith("__") and name[:-1] in names
        result.setdefault(name[:-1] if inplace else name, []).append("aten::" + overload)
    return result


def status(overload: str, rows: dict[str, str]) -> str:
    """How one overload runs on tensors of the device, of whichever layouts it takes."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    layouts = ("Sparse", "SparseCsr", "NestedTensor")
    if overload in HOST_MEMORY:
        return "fallback"
    if rows.get(overload, "graph") != "graph" or has(overload, "PrivateUse1"):
        return "native"
    if has(overload, "CompositeImplicitAutograd"):
        return "composite"
    if has(overload, "CompositeExplicitAutograd") or has(
        overload, "CompositeExplicitAutogradNonFunctional"
    ):
        return "composite"
    if any(has(overload, f"{layout}PrivateUse1") for layout in layouts):
        return "native"
    if overload in JAGGED:
        return "composite"
    return "fallback" if _C.has_fallback(overload) else "unsupported"


def table() -> list[dict[str, Any]]:
    """All rows, sorted by name."""
    rows = {r["name"]: r.get("kind", "functional") for r in json.loads(ROWS.read_text())}
    summary = json.loads(SUMMARY.read_text())
    entries: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, entry in summary["entries"].items():
        entries.setdefault(entry.get("aten") or name.split(".")[0], []).append((name, entry))
    result = []
    for name, overloads in sorted(operators().items()):
        by = {o: status(o, rows) for o in overloads}
        kinds = collections.Counter(by.values())
        if any(k == "native" for k in by.values()):
            kind = "native"
        elif kinds["composite"]:
            kind = "composite"
        else:
            kind = "fallback" if kinds["fallback"] else "unsupported"
        measured: set[str] = set()
        for o in overloads:
            measured |= set(summary["overloads"].get(o, "").split())
        row: dict[str, Any] = {"name": f"aten::{name}", "status": kind, "overloads": by}
        partly: dict[str, str] = {}
        backward: set[str] = set()
        declared: set[str] = set()
        for entry_name, entry in entries.get(name, ()):
            measured |= set(entry.get("forward", "").split())
            backward |= set(entry.get("backward", "").split())
            declared |= set(entry.get("declared", "").split())
            for unit, text in entry.get("partly", {}).items():
                partly[f"{entry_name} {unit}"] = text
        row["measured"] = _ordered(measured)
        row["declared only"] = _ordered(declared - measured)
        row["backward measured"] = _ordered(backward)
        row["not equal"] = partly
        if kind != "fallback" and kinds["fallback"]:
            row["falling back"] = [o for o, k in by.items() if k == "fallback"]
        if kind != "unsupported" and kinds["unsupported"]:
            row["unsupported"] = [o for o, k in by.items() if k == "unsupported"]
        if kind == "composite" and any(rows.get(o) == "graph" for o in overloads):
            row["compiled"] = True
        result.append(row)
    return result


def _ordered(dtypes: set[str]) -> list[str]:
    return [d for d in ORDER if d in dtypes]


def page(rows: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """The document."""
    counts = collections.Counter(r["status"] for r in rows)
    lines = [
        "# Compatibility",
        "",
        "Generated by `tools/generate_compatibility.py`; not edited by hand. The same rows as "
        "JSON: [compatibility.json](../src/torch_neuronx/compatibility.json), and on the command "
        "line `torchneuron ops [NAME]`.",
        "",
        f"{len(rows)} operators of torch {summary['torch'].split('+')[0]}, without those of other "
        f"vendors: {counts['native']} native, {counts['composite']} composed of others by PyTorch, "
        f"{counts['fallback']} on the CPU (counted, and said once; "
        f"`TORCH_NEURONX_FALLBACK=error` forbids it), {counts['unsupported']} unsupported.",
        "",
        "- **native**: has a kernel on the device. **composite**: PyTorch composes it of operators "
        "that have their own rows. **fallback**: runs on the CPU with copies both ways. "
        "**unsupported**: has neither a rule nor a CPU kernel that could stand in, and raises "
        "`NotImplementedError`: other devices' own operators, and those that make quantized or "
        "compressed sparse tensors.",
        "- **measured**: dtypes in which it gave CPU's result, within the tolerances of "
        "[opinfo_tolerances.py](../tools/opinfo_tolerances.py), in at least one OpInfo case that "
        "reached it natively. **declared only**: OpInfo says that CPU takes them; not measured, or "
        "not equal.",
        "- **backward**: dtypes in which every gradient case measured was equal.",
        "- float64 is computed in float32 unless `TORCH_NEURONX_FLOAT64=exact` or the target "
        "`host` is set; it was measured so.",
        "- Views are metadata: any operator takes a non-contiguous argument without a copy.",
        "",
        "## Cases by kind and dtype",
        "",
        "| Kind | Dtype | Run | Equal | Of these fell back | Not equal | Crashed | Excluded |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, by_dtype in sorted(summary["totals"].items()):
        for dtype in sorted(by_dtype, key=lambda d: ORDER.index(d)):
            c = collections.Counter(by_dtype[dtype])
            done = sum(n for o, n in c.items() if o != "skipped")
            lines.append(
                f"| {kind} | {dtype} | {done} | {c['passed'] + c['fallback']} | {c['fallback']} "
                f"| {c['failed']} | {c['crashed']} | {c['excluded']} |"
            )
    lines += [
        "",
        "## Operators",
        "",
        "| Operator | Status | Measured | Declared only | Backward | Notes |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [
            f"`{r['name'].removeprefix('aten::')}`",
            r["status"],
            _short(r["measured"]),
            _short(r["declared only"]),
            _short(r["backward measured"]),
            _notes(r),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _short(dtypes: list[str]) -> str:
    return " ".join(SHORT[d] for d in dtypes)


def _notes(row: dict[str, Any]) -> str:
    notes = []
    for key, title in (("falling back", "on the CPU"), ("unsupported", "unsupported")):
        forms = [o.removeprefix("aten::") for o in row.get(key, ())]
        if forms:
            some = ", ".join(f"`{f}`" for f in forms[:3])
            notes.append(f"{title}: {some}" + (f" and {len(forms) - 3} more" if forms[3:] else ""))
    if row["not equal"]:
        units = sorted({" ".join(k.split(" ")[1:]) for k in row["not equal"]})
        notes.append("not all equal: " + ", ".join(units[:4]) + (" ..." if units[4:] else ""))
    return "; ".join(notes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    options = parser.parse_args()
    rows = table()
    texts = {
        JSON: "[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n",
        PAGE: page(rows, json.loads(SUMMARY.read_text())),
    }
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text() != text]
    if options.check:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is stale: run python tools/generate_compatibility.py",
                file=sys.stderr,
            )
        return 1 if stale else 0
    for path in stale:
        path.write_text(texts[path])
    print(f"{len(rows)} operators")
    return 0


if __name__ == "__main__":
    sys.exit(main())
