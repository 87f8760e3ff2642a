"""How far a result may be from its reference, and where that number comes from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import torch

# Rounding errors of a sum of K terms grow like sqrt(K) when they are independent; a network of
# depth L adds L of them. The factor covers different orders of summation and other polynomials for
# exp, tanh and the like, a few units in the last place each.
_FACTOR = 8.0


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """``|actual - expected| <= atol + rtol * |expected|``. ``provenance``: given by the pilot,
    derived from dtype and reduction length, or a default of torch.testing."""

    rtol: float
    atol: float
    provenance: Literal["given", "derived", "default"]
    why: str


Rule = Callable[[torch.Tensor, str], Tolerance]  # of a reference and its name


def given(pilot_tolerances: dict[str, Any], kind: str) -> Tolerance | None:
    """The pilot's own tolerance for ``output``, ``gradient``, ``trajectory`` or ``metric``."""
    entry = pilot_tolerances.get(kind)
    if entry is None:
        return None
    why = str(entry.get("why", "the pilot gives no reason"))
    return Tolerance(float(entry.get("rtol", 0.0)), float(entry.get("atol", 0.0)), "given", why)


def reduction_length(model: Any) -> tuple[int, int]:
    """The longest sum that a parameter takes part in, and the number of layers with weights."""
    longest, depth = 1, 0
    if isinstance(model, torch.nn.Module):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                depth += 1
                longest = max(longest, parameter[0].numel())
    return longest, max(depth, 1)


def derived(
    expected: torch.Tensor, model: Any, scale: float = 1.0, at_least: float = 0.0
) -> Tolerance:
    """From the dtype's epsilon, the longest reduction and the depth, relative to the root mean
    square of the reference (an element near zero is the difference of large ones), or to
    ``at_least`` where that is larger."""
    if not expected.is_floating_point() and not expected.is_complex():
        return Tolerance(0.0, 0.0, "derived", "integers and booleans must be equal")
    length, depth = reduction_length(model)
    if length == 1:
        eps = torch.finfo(expected.dtype).eps
        return Tolerance(
            32 * eps * scale, 32 * eps * scale, "default", "32 eps; no weights to derive it from"
        )
    eps = torch.finfo(expected.dtype).eps
    relative = _FACTOR * scale * eps * math.sqrt(length) * math.sqrt(depth)
    size = max(root_mean_square([expected]), at_least)
    why = (
        f"{_FACTOR * scale:g} * eps({str(expected.dtype).removeprefix('torch.')})"
        f" * sqrt({length} terms) * sqrt({depth} layers), of the root mean square {size:.3g}"
    )
    return Tolerance(relative, relative * size, "derived", why)


def root_mean_square(tensors: list[torch.Tensor]) -> float:
    """Over all finite elements of all tensors."""
    total, count = 0.0, 0
    for tensor in tensors:
        wide = tensor.detach().cpu().abs().double().nan_to_num(0.0, 0.0, 0.0)
        total, count = total + float(wide.square().sum()), count + wide.numel()
    return math.sqrt(total / count) if count else 0.0


def of_outputs(pilot: Any, model: Any) -> Rule:
    """The pilot's own tolerance for outputs, else one derived for each."""
    stated = given(pilot.setting("tolerances", {}), "output")
    return lambda expected, _name: stated or derived(expected, model)


def of_gradients(gradients: dict[str, torch.Tensor], model: Any, pilot: Any = None) -> Rule:
    """The pilot's own tolerance for gradients, else derived ones, relative to the root mean square
    of all of them: some are zero but for rounding (a key's bias under a softmax), so that their own
    size says nothing."""
    stated = None if pilot is None else given(pilot.setting("tolerances", {}), "gradient")
    size = root_mean_square(list(gradients.values()))
    # A backward pass sums over the batch and goes through the depth twice.
    return lambda gradient, _name: stated or derived(gradient, model, 4.0, size)
