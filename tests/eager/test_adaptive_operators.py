"""OpInfo's sample (``test_operators``) in adaptive mode: the bits of operators run one by one.

A program of several cases repeats until it is fused; the result of each operator goes on into a
product and a sum, so that it stands before others in one executable. The fast tier takes every
tenth program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adaptive_support import Fused, both, equal, no_budget  # noqa: F401
from eager.test_operators import CASES, OPS, Case, arguments, leaves, samples
from support import to_device

SIZE = 6  # cases in a program
FORMS = ("forward", "noncontiguous", "backward", "inplace")
USED = [case for case in CASES if case.form in FORMS]
COUNT = -(-len(USED) // SIZE)
PROGRAMS = [USED[i::COUNT] for i in range(COUNT)]  # neighbours in the list are of one kind


def run(case: Case) -> Callable[[], Any] | None:
    """The case's first sample on the device, to be run again and again; None without a sample."""
    op = OPS[case.name]
    [sample] = samples(case, grad=case.form == "backward", limit=1) or [None]
    if sample is None:
        return None
    if case.form == "noncontiguous":
        sample = sample.noncontiguous()
    args, kwargs = map(to_device, arguments(sample))
    if case.form == "backward":
        inputs = [t for t in leaves([*args, *kwargs.values()]) if t.requires_grad]

        def gradients() -> Any:
            results = [t for t in leaves(op.op(*args, **kwargs)) if t.requires_grad]
            ones = [torch.ones_like(t) for t in results]
            found = torch.autograd.grad(results, inputs, ones, allow_unused=True)
            return [t for t in found if t is not None]

        return gradients
    if case.form == "inplace":
        if sample.broadcasts_input:
            return None

        def in_place() -> Any:
            try:
                return op.inplace_variant(args[0].clone(), *args[1:], **kwargs)
            except RuntimeError as error:  # e.g. the result dtype cannot be stored
                return type(error).__name__

        return in_place
    return lambda: op.op(*args, **kwargs)


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=[pytest.mark.full] * (i % 10 > 0)) for i, p in enumerate(PROGRAMS)],
    ids=lambda program: f"{program[0]}...{program[-1]}",
)
def test_a_program_of_operators(program: list[Case]) -> None:
    torch.manual_seed(0)
    functions = {str(case): f for case in program if (f := run(case)) is not None}

    def every() -> list[Any]:
        torch.manual_seed(1)
        results = [f() for f in functions.values()]
        return [[r, [t * 3 + 1 for t in leaves(r)]] for r in results]

    with Fused() as fused:
        one_by_one, adaptive = both(every, rounds=6)
    for a, b in zip(one_by_one, adaptive, strict=True):
        different = [n for n, p, q in zip(functions, a, b, strict=True) if not equal(p, q)]
        assert different == []
    assert fused.operators > 0
