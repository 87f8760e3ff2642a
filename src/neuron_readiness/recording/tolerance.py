"""How far a result may be from its reference, and where that number comes from."""

from __future__ import annotations

import dataclasses
import math
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


def derived(expected: torch.Tensor, model: Any, scale: float = 1.0) -> Tolerance:
    """From the dtype's epsilon, the longest reduction and the depth, relative to the root mean
    square of the reference (an element near zero is the difference of large ones)."""
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
    finite = expected.detach().double().abs().nan_to_num(0.0, 0.0, 0.0)
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    why = (
        f"{_FACTOR * scale:g} * eps({str(expected.dtype).removeprefix('torch.')})"
        f" * sqrt({length} terms) * sqrt({depth} layers), of the root mean square {size:.3g}"
    )
    return Tolerance(relative, relative * size, "derived", why)
