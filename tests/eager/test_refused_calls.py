"""Calls that only CPU's kernels refuse: the same exception, at the call, and it returns at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def _cat_onto_an_input(device: str) -> None:
    x, y = torch.zeros(0, device=device), torch.randn(4, 6, device=device)
    torch.cat([x, y], dim=0, out=x)


def _add_onto_a_smaller_input(device: str) -> None:
    x, y = torch.zeros(1, device=device), torch.randn(3, device=device)
    torch.add(x, y, out=x)


def _masked_select_onto_its_input(device: str) -> None:
    x = torch.randn(4, device=device)
    torch.masked_select(x, x == x, out=x)


def _masked_select_onto_overlapping_memory(device: str) -> None:
    x = torch.randn(3, device=device)
    torch.masked_select(x, x == x, out=torch.zeros(1, device=device).expand(3))


def _cat_onto_a_part_of_an_input(device: str) -> None:
    x = torch.zeros(8, device=device)
    torch.cat([x[4:], x[:2]], out=x[:6])


def _stack_onto_an_input(device: str) -> None:
    x = torch.zeros(8, device=device)
    torch.stack([x[:2], x[4:6]], out=x[:4].view(2, 2))


def _triangular_solution_of_another_dtype(device: str) -> None:
    x = torch.eye(3, device=device)
    torch.linalg.solve_triangular(x, x, upper=True, out=x.double())


CALLS: dict[str, Callable[[str], object]] = {
    "cat onto an input": _cat_onto_an_input,
    "cat onto a part of an input": _cat_onto_a_part_of_an_input,
    "stack onto an input": _stack_onto_an_input,
    "triangular solution of another dtype": _triangular_solution_of_another_dtype,
    "add onto a smaller input": _add_onto_a_smaller_input,
    "masked_select onto its input": _masked_select_onto_its_input,
    "masked_select onto overlapping memory": _masked_select_onto_overlapping_memory,
    "multinomial of integers": lambda d: torch.multinomial(torch.tensor([1, 2], device=d), 1),
    "multinomial of too many": lambda d: torch.multinomial(torch.ones(2, device=d), 3),
    "multinomial into floats": lambda d: torch.multinomial(
        torch.ones(2, device=d), 1, out=torch.ones(1, device=d)
    ),
    "multinomial of none": lambda d: torch.multinomial(torch.ones(2, device=d), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused_as_on_cpu(name: str) -> None:
    raised = []
    for device in ("cpu", "neuron"):
        with pytest.raises(Exception) as caught:
            CALLS[name](device)
        raised.append(caught.value)
    assert type(raised[1]) is type(raised[0])
    assert str(raised[1]).splitlines()[0] == str(raised[0]).splitlines()[0]


def test_cat_into_other_parts_of_an_inputs_storage() -> None:
    x = torch.arange(8.0, device="neuron")
    torch.cat([x[6:], x[:1]], out=x[2:5])
    assert x.tolist() == [0, 1, 6, 7, 0, 5, 6, 7]


@pytest.mark.parametrize("name", ["masked_select", "nonzero", "cholesky"])
def test_out_on_another_device_is_refused(name: str) -> None:
    x = torch.eye(2, device="neuron")
    with pytest.raises(RuntimeError, match="same device"):
        if name == "cholesky":
            torch.cholesky(x, out=torch.empty(2, 2))
        elif name == "nonzero":
            torch.nonzero(x, out=torch.empty(0, dtype=torch.int64))
        else:
            torch.masked_select(x, x > 0, out=torch.empty(2))
