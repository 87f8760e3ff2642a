"""One architecture on one device: each column answered on its own."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.recording import tolerance
from neuron_readiness.recording.compare import Difference, compare, compare_all
from neuron_readiness.sweep.results import COLUMNS
from neuron_readiness.sweep.sources import Built, load


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
        "errors": {},
    }
    started = time.perf_counter()
    tell({**row, "at": "loads"})
    try:
        built = load(source).build(name)
    except Exception as error:
        row |= {"loads": False, "errors": {"loads": _said(error)}}
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
    expected = _forward(built.model, built.kwargs)
    gradients = _gradients(built.model, built.kwargs)
    row["trainable"] = gradients is not None
    adapter.clear_tracking()
    model = None
    with _Column(row, "forward", tell):
        model = copy.deepcopy(built.model).to(adapter.device)
        kwargs = trees.move(built.kwargs, adapter.device)
        actual = trees.move(_forward(model, kwargs), "cpu")
        row["forward"] = True
    if row["forward"]:
        differences = compare_all(actual, expected, _tolerance(built.model))
        row["agrees"] = all(d.within for d in differences)
        row["worst_in_tolerances"] = max((d.worst for d in differences), default=0.0)
        _explain(row, "agrees", differences)
        if not row["agrees"]:
            _sensitivity(row, built, expected)
    if model is not None and gradients is not None:
        with _Column(row, "backward", tell):
            found = _gradients(model, kwargs)
            row["backward"] = found is not None
        if row["backward"] and found is not None:
            _compare_gradients(row, built.model, found, gradients)
    hosts = adapter.host_operators()
    if hosts is not None:
        row["host_operators"] = sorted({h.overload for h in hosts})
        if row["forward"]:
            row["on_device"] = not hosts
    if model is not None and adapter.compile_backend is not None:
        _compiled(row, model, kwargs, expected, built, adapter, tell)


class _OtherTies(TorchDispatchMode):
    """Orders from the other end, so that equal values come in another order, just as valid."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.ops.aten.topk.default, torch.ops.aten.sort.default):
            return func(*args, **kwargs)
        x = args[0]
        position = 2 if func is torch.ops.aten.topk.default else 1
        dim = kwargs.get("dim", args[position] if len(args) > position else -1)
        if x.dim() == 0:
            return func(*args, **kwargs)
        values, indices = func(x.flip(dim), *args[1:], **kwargs)
        return values, x.shape[dim] - 1 - indices


def _sensitivity(row: dict[str, Any], built: Built, expected: Any) -> None:
    """How far the reference itself moves, in tolerances, when its weights and inputs are rounded
    once more and equal values are ordered otherwise: where that is more than 1, a comparison of
    devices says nothing (a detector with random weights picks among equal scores)."""
    make = torch.Generator().manual_seed(2)

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=make) * 2 - 1
        return tensor * (1 + torch.finfo(tensor.dtype).eps * signs)

    model = copy.deepcopy(built.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rounded(parameter))
    with _OtherTies():
        moved = _forward(model, trees.map_tensors(rounded, built.kwargs))
    differences = compare_all(moved, expected, _tolerance(built.model))
    row["reference_moves"] = max((d.worst for d in differences), default=0.0)


def _compiled(
    row: dict[str, Any],
    model: Any,
    kwargs: Any,
    expected: Any,
    built: Built,
    adapter: Adapter,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    actual = None
    with _Column(row, "compiles", tell):
        compiled = torch.compile(model, backend=adapter.compile_backend or "inductor")
        actual = trees.move(_forward(compiled, kwargs), "cpu")
        row["compiles"] = True
    row["graph_breaks"] = sum(counters["graph_break"].values())
    row["break_reasons"] = sorted({r.strip().split("\n")[0] for r in counters["graph_break"]})
    torch._dynamo.reset()
    if actual is not None:
        differences = compare_all(actual, expected, _tolerance(built.model))
        row["compiled_agrees"] = all(d.within for d in differences)
        _explain(row, "compiled_agrees", differences)


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
        self._row["errors"][self._name] = _said(error)
        return True


def _forward(model: Any, kwargs: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**copy.copy(kwargs))


def _gradients(model: Any, kwargs: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """Gradients of a weighted sum of every floating output, or None where nothing can be trained.
    On the reference an error means that too; on the device it is the caller's to catch."""
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    on_reference = next(iter(model.parameters()), torch.empty(0)).device.type == "cpu"
    try:
        outputs = [t for t in trees.tensors(model(**copy.copy(kwargs))) if t.requires_grad]
        if not outputs:
            return None
        _weighted(outputs).backward()
    except Exception:
        if on_reference:
            return None
        raise
    found = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found or None


def _weighted(outputs: list[torch.Tensor]) -> torch.Tensor:
    """A scalar with a gradient everywhere. Fixed random weights, because the plain sum and the sum
    of squares of a normalised output are constants, whose gradients are nothing but rounding."""
    make = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for output in outputs:
        weights = torch.randn(output.shape, generator=make)
        term = (output.float() * weights.to(output.device)).mean()
        total = total.to(term.device) + term
    return total


def _compare_gradients(
    row: dict[str, Any],
    model: Any,
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
) -> None:
    differences = []
    tol = tolerance.of_gradients(expected, model)
    for name, gradient in expected.items():
        if name in found:
            differences.append(compare(found[name], gradient, tol(gradient, name), name))
    same = all(d.within for d in differences) and found.keys() == expected.keys()
    row["backward_agrees"] = same
    _explain(row, "backward_agrees", differences)


def _tolerance(model: Any) -> Any:
    return lambda expected, _name: tolerance.derived(expected, model)


def _explain(row: dict[str, Any], column: str, differences: list[Difference]) -> None:
    bad = max((d for d in differences if not d.within), key=lambda d: d.worst, default=None)
    if bad is not None:
        text = bad.problem or f"differs by {bad.max_abs:.3g}, {bad.worst:.3g} tolerances"
        row["errors"][column] = f"{bad.name}: {text}"


def _said(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip()[:300]}{place}"
