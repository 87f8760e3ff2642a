"""torch.compile on the cases: graphs, breaks with their lines, in which layer a failure lies, and
whether what is compiled computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case
from neuron_readiness.recording import gradients, tolerance
from neuron_readiness.recording.compare import compare, compare_all
from neuron_readiness.run import faults
from neuron_readiness.workload import Workload

_MOST = 8  # cases that are compiled; each new shape may cost a compilation


def examine(
    workload: Workload,
    reference: Workload | None,
    requests: list[Case],
    batches: list[Case],
    keywords: dict[str, Any],
    *,
    draws: bool = False,
) -> dict[str, Any]:
    """Captures, then compiles each request of another shape, and one batch with its backward pass.

    ``failure`` is None, "capture" (the program could not be traced) or "lowering" (a traced graph
    could not be compiled or run); ``outside`` counts compiled outputs and gradients that leave
    their tolerance, against ``reference`` or, without one, against the workload run eagerly;
    ``shared`` counts what leaves it eagerly too, by as much: no fault of compiling.
    ``draws``: a training step depends on random numbers, which a compiler may draw otherwise, so
    that its gradients cannot be judged.
    """
    backend = keywords.get("backend", workload.adapter.compile_backend)
    keywords = {**keywords, "backend": backend}
    chosen = _distinct(workload, requests)
    rows: dict[str, dict[str, Any]] = {}
    for case in chosen[:_MOST]:
        rows[case.name] = _one(workload, reference, case, keywords)
    for case in batches[:1]:
        rows[case.name] = _batch(workload, case, keywords, draws)
    first = next((r for r in rows.values() if r["failure"]), None)
    captured = [r["graphs"] for r in rows.values() if r["graphs"] is not None]
    return {
        "backend": backend,
        "keywords": {k: str(v) for k, v in keywords.items()},
        "graphs": max(captured, default=None),
        "regions": max((r["regions"] for r in rows.values()), key=len, default=[]),
        "breaks": _breaks(rows),
        "failure": first and first["failure"],
        "error": first["error"] if first else "",
        "failed_cases": [n for n, r in rows.items() if r["failure"]],
        "difference": max((r["difference"] or 0.0 for r in rows.values()), default=None),
        # Where nothing compiles there is no result that could be right.
        "outside": sum(r["outside"] for r in rows.values())
        if any(not r["failure"] for r in rows.values())
        else None,
        "shared": sum(r["shared"] for r in rows.values()),
        "outside_cases": [n for n, r in rows.items() if r["outside"]],
        "cases": list(rows),
        "not_compiled": [c.name for c in chosen[_MOST:]],
    }


def _distinct(workload: Workload, cases: list[Case]) -> list[Case]:
    """The first case of each shape, the rarest first: a branch that few requests take is in it."""
    found: dict[str, Case] = {}
    for case in sorted(cases, key=lambda c: c.frequency):
        found.setdefault(trees.shape_text(workload.prepared(case)), case)
    return list(found.values())


def _row() -> dict[str, Any]:
    return {
        "graphs": None,
        "regions": [],
        "breaks": [],
        "failure": None,
        "error": "",
        "difference": None,
        "outside": 0,
        "shared": 0,
    }


def _one(
    workload: Workload, reference: Workload | None, case: Case, keywords: dict[str, Any]
) -> dict[str, Any]:
    row = _row()
    args, kwargs = trees.move(workload.prepared(case), workload.adapter.device)
    if not _guarded(row, "capture", lambda: _capture(workload, args, kwargs, row)):
        return row

    def compile_and_compare() -> None:
        compiled = torch.compile(workload.model, **keywords)
        actual = trees.move(workload.output(case, compiled), "cpu")
        eager = trees.move(workload.output(case), "cpu")
        row["difference"] = _difference(actual, eager)
        expected = eager if reference is None else reference.output(case)
        tol = tolerance.of_outputs(workload.pilot, (reference or workload).model)
        # What the eager path computes equally wrong is for the gate of eager outputs to judge.
        own = {r.name for r in compare_all(eager, expected, tol) if not r.within}
        same = {r.name for r in compare_all(actual, eager, tol) if r.within}
        failed = {r.name for r in compare_all(actual, expected, tol) if not r.within}
        row["shared"] = len(failed & own & same)
        row["outside"] = len(failed) - row["shared"]

    _guarded(row, None, compile_and_compare)
    return row


def _batch(workload: Workload, case: Case, keywords: dict[str, Any], draws: bool) -> dict[str, Any]:
    """Forward and backward of a training batch, compiled; its gradients against the eager ones."""
    row = _row()
    expected = gradients.of(workload, case)
    if expected is None:
        return row

    def compile_and_compare() -> None:
        actual = gradients.of(workload, case, lambda model: torch.compile(model, **keywords))
        tol = tolerance.of_gradients(expected, workload.model, workload.pilot)
        found = {n.removeprefix("_orig_mod."): g for n, g in (actual or {}).items()}
        rows = [
            compare(found[n].cpu(), e.cpu(), tol(e, n), n) if n in found else None
            for n, e in expected.items()
        ]
        row["outside"] = sum(r is None or not (r.within or draws) for r in rows)
        row["difference"] = max((r.max_abs for r in rows if r), default=0.0)

    _guarded(row, None, compile_and_compare)
    return row


def _guarded(row: dict[str, Any], layer: str | None, work: Callable[[], None]) -> bool:
    """Runs one step with Dynamo's state fresh; what it raises becomes the row's failure."""
    torch._dynamo.reset()
    try:
        work()
    except faults.raised() as error:
        row |= {"failure": layer or _layer(error), "error": _first(error)}
        return False
    finally:
        torch._dynamo.reset()
    return True


def _breaks(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each break once, with the cases that meet it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, row in rows.items():
        for entry in row["breaks"]:
            known = found.setdefault((entry["line"], entry["reason"]), {**entry, "cases": []})
            if name not in known["cases"]:
                known["cases"].append(name)
    return list(found.values())


def _capture(
    workload: Workload, args: tuple[Any, ...], kwargs: dict[str, Any], facts: dict[str, Any]
) -> None:
    def call(*a: Any, **k: Any) -> Any:
        return workload.call(a, k, workload.model)

    with torch.no_grad():
        explained = torch._dynamo.explain(call)(*args, **kwargs)
    facts["graphs"] = explained.graph_count
    facts["regions"] = [
        sum(node.op.startswith("call_") for node in graph.graph.nodes) for graph in explained.graphs
    ]
    for reason in explained.break_reasons:
        text = str(reason.reason).strip()
        frame = reason.user_stack[-1] if reason.user_stack else None
        lines = [part.strip() for part in text.splitlines() if part.strip()]
        hints = [part for part in lines if part.startswith("Hint")]
        facts["breaks"].append(
            {
                "reason": lines[0] if lines else "",
                "line": f"{frame.filename}:{frame.lineno}" if frame else "",
                "remedy": hints[0] if hints else "restructure the region or keep it eager",
            }
        )


def _layer(error: BaseException) -> str:
    """ "capture" for Dynamo's own errors, "lowering" for a backend's, however deep they lie."""
    seen: BaseException | None = error
    while seen is not None:
        name = type(seen).__name__
        if name in ("BackendCompilerFailed", "InductorError", "LoweringException"):
            return "lowering"
        if name in ("Unsupported", "UserError", "TorchRuntimeError", "InternalTorchDynamoError"):
            return "capture"
        seen = seen.__cause__ or seen.__context__
    return "lowering"


def _difference(actual: Any, expected: Any) -> float:
    gaps = [
        float((a.cpu().double() - e.cpu().double()).abs().nan_to_num(0.0).max())
        for a, e in zip(trees.tensors(actual), trees.tensors(expected), strict=True)
        if a.numel()
    ]
    return max(gaps, default=0.0)


def _first(error: BaseException) -> str:
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    # Dynamo's first line names the layer and the second the cause.
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]
