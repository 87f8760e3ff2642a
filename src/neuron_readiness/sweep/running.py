"""A forward, its gradients, and how they are compared: the same for reference and device."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.recording import tolerance
from neuron_readiness.recording.compare import Difference, compare, compare_all


def placed(model: Any, device: str) -> Any:
    """A copy on ``device``, with what the modules keep outside of their buffers: some hold a table
    for the length they last met, which is the reference's by now."""
    copied = copy.deepcopy(model).to(device)
    for module in copied.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.to(device))
    return copied


def forward(model: Any, kwargs: dict[str, Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(**copy.copy(kwargs))


def gradients(model: Any, kwargs: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor] | None:
    """Gradients of the loss, or of a weighted sum of every floating output where there is none;
    None where nothing can be trained. On the reference an error means that too; on the device it is
    the caller's to catch."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    on_reference = next(iter(model.parameters()), torch.empty(0)).device.type == "cpu"
    try:
        outputs = model(**copy.copy(kwargs))
        loss = getattr(outputs, "loss", None) if "labels" in kwargs else None
        if loss is None:
            trained = [t for t in trees.tensors(outputs) if t.requires_grad]
            if not trained:
                return None
            loss = _weighted(trained)
        loss.backward()
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


def compare_outputs(actual: Any, expected: Any, model: Any) -> list[Difference]:
    """``model``: the reference, which the tolerances are derived from."""
    return compare_all(actual, expected, lambda e, _name: tolerance.derived(e, model))


def compare_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], model: Any
) -> list[Difference]:
    """Of the parameters that both have."""
    tol = tolerance.of_gradients(expected, model)
    return [compare(found[n], g, tol(g, n), n) for n, g in expected.items() if n in found]


def worst(differences: list[Difference]) -> float:
    """The largest difference, in tolerances."""
    return max((d.worst for d in differences), default=0.0)


def explain(row: dict[str, Any], column: str, differences: list[Difference]) -> None:
    """Notes the worst difference that is not within its tolerance."""
    bad = max((d for d in differences if not d.within), key=lambda d: d.worst, default=None)
    if bad is not None:
        text = bad.problem or f"differs by {bad.max_abs:.3g}, {bad.worst:.3g} tolerances"
        row["errors"][column] = f"{bad.name}: {text}"


def said(error: BaseException) -> str:
    """An exception in a line, with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error).strip()[:300]}{place}"
