"""Checks the backward operators that a function's gradients reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.lowering.harness import Report, _Recorder, flatten

from torch_neuronx.lowering import table


def check_gradients(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    reach: tuple[str, ...],
    skip: frozenset[str] = frozenset(),
) -> None:
    """Differentiate ``function`` on CPU, checking each ``aten`` call that has a rule.

    Args:
        inputs: floating tensors, each gets a gradient.
        reach: overloads that must have been checked, such as ``aten::gelu_backward``.
        skip: overloads whose CPU calls cannot be compared; the caller says why.
    """
    table.load_rules()
    report = Report()
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    # CPU dispatches the gradients on this thread, so the mode sees them too.
    with _Recorder(report, 20, skip, getattr(function, "__name__", "function")):
        outputs = [y for y in flatten(function(*leaves)) if y.requires_grad]
        torch.autograd.grad(outputs, leaves, [torch.randn_like(y) for y in outputs])
    assert not report.failures, "\n".join(report.failures)
    checked = {bucket.rpartition("/")[0] for bucket in report.checked}
    missing = set(reach) - checked
    assert not missing, f"not reached: {sorted(missing)}; reached: {sorted(checked)}"
