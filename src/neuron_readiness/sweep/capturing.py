"""``torch.compile``: as one graph, and where that fails, with breaks; and whose the breaks are."""

from __future__ import annotations

import re
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
        row["break_reasons"] = sorted({_reason(text) for text in counters["graph_break"]})


def _reason(text: str) -> str:
    """Dynamo's reason in a line; of a Python function that it does not trace, which one of what."""
    head = text.strip().split("\n")[0]
    called = re.search(r"builtin operator `(\w+)` with argument types \[(.*?)\]", text)
    return f"{head}: {called[1]} of {called[2]}" if called is not None else head


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
