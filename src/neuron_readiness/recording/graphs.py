"""torch.compile on a case: graphs, breaks with their lines, and in which layer a failure lies."""

from __future__ import annotations

from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case
from neuron_readiness.workload import Workload


def examine(workload: Workload, case: Case, keywords: dict[str, Any]) -> dict[str, Any]:
    """Captures, then compiles with the device's backend. ``failure`` is None, "capture" (the
    program could not be traced) or "lowering" (a traced graph could not be compiled or run)."""
    backend = keywords.get("backend", workload.adapter.compile_backend)
    facts: dict[str, Any] = {
        "backend": backend,
        "graphs": None,
        "regions": [],
        "breaks": [],
        "failure": None,
        "error": "",
        "difference": None,
    }
    args, kwargs = trees.move(workload.prepared(case), workload.adapter.device)
    torch._dynamo.reset()
    try:
        _capture(workload, args, kwargs, facts)
    except Exception as error:
        facts |= {"failure": "capture", "error": _first(error)}
        return facts
    finally:
        torch._dynamo.reset()
    try:
        model = torch.compile(workload.model, **{**keywords, "backend": backend})
        with torch.no_grad():
            torch.manual_seed(workload.pilot.seed)
            compiled = workload.call(args, kwargs, model)
            facts["difference"] = _difference(compiled, workload.output(case))
    except Exception as error:
        facts |= {"failure": _layer(error), "error": _first(error)}
    finally:
        torch._dynamo.reset()
    return facts


def _capture(
    workload: Workload, args: tuple[Any, ...], kwargs: dict[str, Any], facts: dict[str, Any]
) -> None:
    def call(*a: Any, **k: Any) -> Any:
        return workload.call(a, k)

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
