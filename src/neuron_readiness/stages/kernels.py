"""Item 8: custom kernels, their share, their gradients, and who keeps them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._library import custom_ops

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult
from neuron_readiness.inventory.kernels import in_source
from neuron_readiness.recording.attempts import Attempts
from neuron_readiness.recording.operators import OperatorRecorder

_STANDARD = (
    "aten::",
    "prims::",
    "prim::",
    "c10d::",
    "_c10d_functional::",
    "profiler::",
    "inductor::",
)


def run(context: Context) -> StageResult:
    result = StageResult("kernels", "Custom kernels")
    workload = context.pair[0]
    adapter = workload.adapter
    recorder = OperatorRecorder(adapter.device, adapter.synchronize, timed=True)
    attempts = Attempts(result, context, "")
    every = context.pilot.operations()
    for case in every:
        attempts(case, partial(workload.request, case))
    with recorder:
        for case in every:
            attempts(case, partial(workload.request, case, recorder.phase))
    ran = bool(attempts.usable(every))
    path = [u for u in recorder.uses.values() if u.phase == "device"]
    total = sum(u.seconds for u in path) or 1.0
    declared = {k["name"]: k for k in context.pilot.setting("kernels", [])}
    rows: dict[str, dict[str, Any]] = {}
    for use in path:
        if use.overload.startswith(_STANDARD):
            continue
        row = rows.setdefault(
            use.overload, {"name": use.overload, "calls": 0, "share": 0.0, "line": use.line}
        )
        row["calls"] += use.count
        row["share"] += use.seconds / total
    hits = context.earlier.get("inventory", {}).get("hits", [])
    for name, hit, seen in in_source(hits, list(rows)):
        line = f"{hit['file']}:{hit['line']}"
        rows[name] = {"name": name, "calls": None, "share": None, "line": line, "seen": seen}
        rows[name]["operator"] = hit["kernel"] if "::" in hit["kernel"] else None
    for name in declared:
        if not any(name in row for row in rows):
            rows[name] = {"name": name, "calls": None, "share": None, "line": ""}
    for row in rows.values():
        keeper: dict[str, Any] = next((k for n, k in declared.items() if n in row["name"]), {})
        row |= {"owner": keeper.get("owner"), "test": keeper.get("test")}
        row["has_gradient"] = _has_gradient(row.pop("operator", row["name"]))
    _say(result, context, list(rows.values()))
    result.facts["failed_requests"] = len(attempts.failed)
    if not ran:
        result.open("custom kernels that a request reaches", "no case runs")
    elif not rows:
        result.measured(
            "no custom kernel is reached", "operators outside PyTorch's own namespaces, sources"
        )
    return result


def _has_gradient(name: str | None) -> bool | None:
    """Whether an autograd formula is registered for an operator; None if that cannot be told."""
    if name is None or "::" not in name or name.endswith("::"):
        return None
    # `torch.library.custom_op` registers one that raises until `register_autograd` gives another.
    definition = getattr(custom_ops, "OPDEFS", {}).get(name.partition(".")[0])
    if definition is not None and hasattr(definition, "_backward_fn"):
        return definition._backward_fn is not None
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")) or bool(
            torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        )
    except RuntimeError:
        return None


def _say(result: StageResult, context: Context, rows: list[dict[str, Any]]) -> None:
    # What no case runs is no gap, as in the inventory: it is dead, or a case is missing.
    counted = [r for r in rows if r.setdefault("seen", True)]
    unowned = [r for r in counted if not (r["owner"] and r["test"])]
    trains = context.pilot.trains
    result.facts = {
        "kernels": rows,
        "count": len(rows),
        "without_owner_or_test": len(unowned),
        "without_gradient": sum(r["has_gradient"] is False for r in counted) if trains else 0,
    }
    for r in rows:
        share = "share not measured" if r["share"] is None else f"{r['share']:.1%} of the step"
        gradient = {True: "has a gradient", False: "has no gradient", None: "gradient open"}
        text = (
            f"{r['name']}: {share}, {gradient[r['has_gradient']]}, owner {r['owner'] or 'open'}, "
            f"test {r['test'] or 'open'}"
        )
        if not r["seen"]:
            result.open(f"{r['name']}: whether it is needed", "no case runs a line that names it")
            continue
        if r["share"] is None:
            result.open(text, "it was not reached by a case")
        else:
            result.measured(text, "time of single operators, synchronised one by one")
        if r in unowned:
            change = "name owner and test in the pilot's `kernels`"
            result.findings.append(
                Finding(
                    f"{r['name']} has no owner or test", "gap", r["line"], change, "kernel_owners"
                )
            )
        if trains and r["has_gradient"] is False:
            text = f"{r['name']} has no gradient and the workload trains"
            change = "register an autograd formula"
            result.findings.append(Finding(text, "gap", r["line"], change, "kernel_gradients"))
