"""Random programs that mix views, in-place writes, ``out=`` and operators, against CPU.

A program is a list of steps over a growing list of tensors; each step picks its operands by
number. Everything alive is compared at the end, so that a write which an alias missed shows, and
so does a step that waited for a compile and then read what a later one wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import assert_same, no_fallback

SIZE = (4, 6)  # every base; views of it give few further shapes, and so few executables

VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t[1:],
    lambda t: t[..., ::2],
    lambda t: t.t() if t.dim() == 2 else t[:1],
    lambda t: t.reshape(-1) if t.is_contiguous() else t[:1],
    lambda t: t[-1] if t.dim() > 1 else t[:2],
    lambda t: t.diagonal() if t.dim() == 2 else t[1:],
    lambda t: t.unsqueeze(0).squeeze(0),
    lambda t: t.detach(),
)
IN_PLACE: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: t.add_(1.5),
    lambda t: t.mul_(-0.5),
    lambda t: t.zero_(),
    lambda t: t.clamp_(-2, 2),
    lambda t: t.copy_(torch.arange(1.0, t.numel() + 1).reshape(t.shape)),
    lambda t: t.masked_fill_(t > 1, 0.25),
)
UNARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.neg,
    torch.clone,
    lambda t: t * 2,
    lambda t: t.sum(0, keepdim=True).expand(t.shape).contiguous(),
    lambda t: t.cumsum(0),
)
BINARY: tuple[Callable[..., torch.Tensor], ...] = (torch.add, torch.mul, torch.maximum)

INDEX = st.integers(0, 63)
STEP = st.one_of(
    st.tuples(st.just("view"), INDEX, st.integers(0, len(VIEWS) - 1)),
    st.tuples(st.just("in place"), INDEX, st.integers(0, len(IN_PLACE) - 1)),
    st.tuples(st.just("unary"), INDEX, st.integers(0, len(UNARY) - 1)),
    st.tuples(st.just("binary"), INDEX, INDEX, st.integers(0, len(BINARY) - 1)),
    st.tuples(st.just("out"), INDEX, INDEX, INDEX, st.integers(0, len(BINARY) - 1)),
    st.tuples(st.just("assign"), INDEX, INDEX),
    st.tuples(st.just("read"), INDEX),
)


def pick(tensors: list[torch.Tensor], number: int, shape: torch.Size | None = None) -> Any:
    """A tensor by number, among those of a shape."""
    fitting = [t for t in tensors if shape is None or t.shape == shape]
    return fitting[number % len(fitting)]


def step(tensors: list[torch.Tensor], what: tuple[Any, ...]) -> Any:
    """Carries out one step; what it raised or read is its result."""
    kind, *numbers = what
    first = pick(tensors, numbers[0])
    if kind == "view":
        tensors.append(VIEWS[numbers[1]](first))
    elif kind == "in place":
        IN_PLACE[numbers[1]](first)
    elif kind == "unary":
        tensors.append(UNARY[numbers[1]](first))
    elif kind == "read":
        return first.sum().item() if first.numel() < 3 else first.tolist()
    else:
        second = pick(tensors, numbers[1], first.shape)
        if kind == "binary":
            tensors.append(BINARY[numbers[2]](first, second))
        elif kind == "assign":
            first[...] = second
        else:
            out = pick(tensors, numbers[2], first.shape)
            try:
                BINARY[numbers[3]](first, second, out=out)
            except RuntimeError as error:  # out overlaps an operand in part
                return str(error).split(".")[0]
    return None


def run(device: str, program: list[tuple[Any, ...]]) -> tuple[list[torch.Tensor], list[Any]]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(SIZE, generator=generator).to(device) for _ in range(3)]
    notes = []
    for what in program:
        try:
            notes.append(step(tensors, what))
        except RuntimeError as error:
            notes.append(str(error).split(".")[0])
    return tensors, notes


@settings(
    max_examples=700,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(STEP, min_size=4, max_size=16))
def test_random_programs_equal_cpu(program: list[tuple[Any, ...]]) -> None:
    with no_fallback():
        expected, expected_notes = run("cpu", program)
        actual, notes = run("neuron", program)
    for note, expected_note in zip(notes, expected_notes, strict=True):
        if isinstance(expected_note, (float, list)):
            torch.testing.assert_close(
                torch.tensor(note),
                torch.tensor(expected_note),
                rtol=2e-5,
                atol=2e-5,
                equal_nan=True,
            )
        else:
            assert note == expected_note
    assert_same(actual, expected)
    # Aliases share an address on the device where they do on CPU, and nothing else does.
    addresses = [[t.data_ptr() for t in side if t.numel()] for side in (actual, expected)]
    same = [[a == b for a in side for b in side] for side in addresses]
    assert same[0] == same[1]
