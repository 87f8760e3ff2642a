"""One architecture on one device: each column answered on its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.sweep import capturing, memory, running, sensitivity
from neuron_readiness.sweep.results import COLUMNS
from neuron_readiness.sweep.sources import Built, load

_BUILDING = 6 << 30  # bytes that finding a reduction and inputs may take


def probe(
    source: str,
    name: str,
    family: str,
    adapter: Adapter,
    tell: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """A row: True, False, or None where a column does not apply or was not reached. ``tell`` gets
    the row so far whenever a column begins, with its name as ``at``."""
    row: dict[str, Any] = {
        "source": source,
        "name": name,
        "family": family,
        **dict.fromkeys([*COLUMNS, "trainable"], None),
        "host_operators": [],
        "graph_breaks": None,
        "break_reasons": [],
        "worst_in_tolerances": None,
        "reference_moves": None,
        "reference_gradients_move": None,
        "reference_captures": None,
        "capture_moves": None,
        "errors": {},
    }
    started = time.perf_counter()
    tell({**row, "at": "loads"})
    try:
        with memory.bounded(_BUILDING):
            built = load(source).build(name)
    except Exception as error:
        row |= {"loads": False, "errors": {"loads": running.said(error)}}
        return {**row, "seconds": time.perf_counter() - started}
    row |= {
        "loads": True,
        "class_name": built.class_name,
        "recipe": built.recipe,
        "reduction": built.reduction,
        "parameters": built.parameters,
    }
    _examine(row, built, adapter, tell)
    return {**row, "seconds": time.perf_counter() - started}


def _examine(
    row: dict[str, Any], built: Built, adapter: Adapter, tell: Callable[[dict[str, Any]], None]
) -> None:
    expected = running.forward(built.model, built.kwargs)
    gradients = running.gradients(built.model, built.kwargs)
    row["trainable"] = gradients is not None
    adapter.clear_tracking()
    model = None
    with _Column(row, "forward", tell):
        model = running.placed(built.model, adapter.device)
        kwargs = trees.move(built.kwargs, adapter.device)
        actual = trees.move(running.forward(model, kwargs), "cpu")
        row["forward"] = True
    if row["forward"]:
        differences = running.compare_outputs(actual, expected, built.model)
        row["agrees"] = all(d.within for d in differences)
        row["worst_in_tolerances"] = running.worst(differences)
        running.explain(row, "agrees", differences)
        if not row["agrees"]:
            row["reference_moves"] = sensitivity.outputs_move(built, expected)
    if model is not None and gradients is not None:
        found = None
        with _Column(row, "backward", tell):
            found = running.gradients(model, kwargs)
            row["backward"] = found is not None
        if found is not None:
            differences = running.compare_gradients(found, gradients, built.model)
            same = found.keys() == gradients.keys()
            row["backward_agrees"] = same and all(d.within for d in differences)
            running.explain(row, "backward_agrees", differences)
            if not row["backward_agrees"]:
                row["reference_gradients_move"] = sensitivity.gradients_move(built, gradients)
    hosts = adapter.host_operators()
    if hosts is not None:
        row["host_operators"] = sorted({h.overload for h in hosts})
        if row["forward"]:
            row["on_device"] = not hosts
    if model is not None and adapter.compile_backend is not None:
        _compiled(row, model, kwargs, expected, built, adapter, tell)


def _compiled(
    row: dict[str, Any],
    model: Any,
    kwargs: Any,
    expected: Any,
    built: Built,
    adapter: Adapter,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    actual = None
    with _Column(row, "compiles", tell):
        actual = capturing.compiled(row, model, kwargs, adapter)
        row["compiles"] = True
    if row["fullgraph"] is False:
        row["reference_captures"] = capturing.reference_captures(built)
    if actual is None:
        return
    differences = running.compare_outputs(actual, expected, built.model)
    if not all(d.within for d in differences):
        with contextlib.suppress(Exception):  # what the CPU cannot compile explains nothing
            captured = capturing.captured_reference(built)
            moved = running.compare_outputs(captured, expected, built.model)
            row["capture_moves"] = running.worst(moved)
            if row["capture_moves"] > 1:
                differences = running.compare_outputs(actual, captured, built.model)
    row["compiled_agrees"] = all(d.within for d in differences)
    running.explain(row, "compiled_agrees", differences)


class _Column:
    """An exception inside makes the column False and is kept as its error."""

    def __init__(
        self, row: dict[str, Any], name: str, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self._row, self._name, self._tell = row, name, tell

    def __enter__(self) -> None:
        self._tell({**self._row, "at": self._name})
        self._row[self._name] = False

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._row[self._name] = False
        self._row["errors"][self._name] = running.said(error)
        return True
