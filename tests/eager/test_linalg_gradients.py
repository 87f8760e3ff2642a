"""Gradients through saved LU factors: formulas differ in whether those are of the transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": torch.linalg.solve,
    "solve_ex": lambda a, b: torch.linalg.solve_ex(a, b)[0],
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "vector": lambda a, b: torch.linalg.solve(a, b[:, 0]),
    "det": lambda a, b: torch.linalg.det(a) * b,
    "slogdet": lambda a, b: torch.linalg.slogdet(a)[1] * b,
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_both_arguments(name: str, transposed: bool) -> None:
    torch.manual_seed(0)
    matrix, right = torch.randn(4, 4), torch.randn(4, 2)
    answers = []
    for device in ("cpu", "neuron"):
        a = matrix.to(device).requires_grad_()
        b = right.to(device).requires_grad_()
        # A transposed view has column-major strides: then CPU's factors are of another matrix.
        result = CALLS[name](a.mT if transposed else a, b)
        weight = torch.arange(1.0, result.numel() + 1).reshape(result.shape).to(device)
        grads = torch.autograd.grad((result * weight).sum(), (a, b))
        answers.append([result.detach().cpu(), *(g.cpu() for g in grads)])
    for got, want in zip(answers[1], answers[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
