"""``torch.compile``: as one graph, and where that fails, with breaks; and whose the breaks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.sweep import running
from neuron_readiness.sweep.sources import Built


def compiled(row: dict[str, Any], model: Any, kwargs: dict[str, Any], adapter: Adapter) -> Any:
    """The compiled model's outputs. Sets ``fullgraph``, ``graph_breaks`` and ``break_reasons``.

    Raises:
        Exception: whatever compiling with graph breaks raises.
    """
    try:
        outputs = _run(model, kwargs, adapter.compile_backend, fullgraph=True)
        row |= {"fullgraph": True, "graph_breaks": 0, "break_reasons": []}
        return outputs
    except Exception as error:
        row["fullgraph"] = False
        row["errors"]["fullgraph"] = running.said(error)
    counters = torch._dynamo.utils.counters
    try:
        return _run(model, kwargs, adapter.compile_backend, fullgraph=False)
    finally:
        row["graph_breaks"] = sum(counters["graph_break"].values())
        row["break_reasons"] = sorted({r.strip().split("\n")[0] for r in counters["graph_break"]})


def reference_captures(built: Built) -> bool:
    """Whether Dynamo captures the reference as one graph, with PyTorch's own kernels on the CPU."""
    try:
        _run(built.model, built.kwargs, "eager", fullgraph=True)
    except Exception:
        return False
    return True


def captured_reference(built: Built) -> Any:
    """The reference's outputs as Dynamo captures it, computed by PyTorch's own kernels: some models
    ask whether they are being compiled and then compute something else."""
    return _run(built.model, built.kwargs, "eager", fullgraph=False)


def _run(model: Any, kwargs: dict[str, Any], backend: str | None, *, fullgraph: bool) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        function: Callable[..., Any] = torch.compile(
            model, backend=backend or "inductor", fullgraph=fullgraph
        )
        return trees.move(running.forward(function, kwargs), "cpu")
    finally:
        torch._dynamo.reset()
