"""Runs a case on the CPU and on the device and compares what it gives.

``MODE`` "adaptive" (``conftest.py``) repeats the case on the device with adaptive eager, until what
repeats in it is fused, and compares the bits with those of operators that run one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adaptive_support import both, equal
from support import assert_same, no_fallback

Case = Callable[[str], Any]
MODE = "per-op"
ROUNDS = 6


def same_on_both(case: Case, *, strides: bool = False, scale: float = 1.0) -> Any:
    """``case("neuron")``, after comparing it with ``case("cpu")``; no operator may fall back."""
    torch.manual_seed(0)
    expected = case("cpu")
    torch.manual_seed(0)
    with no_fallback():
        actual = case("neuron")
        assert_same(actual, expected, strides=strides, scale=scale)
    if MODE == "adaptive":
        one_by_one, adaptive = both(seeded(case), ROUNDS)
        for i, (a, b) in enumerate(zip(one_by_one, adaptive, strict=True)):
            assert equal(a, b), f"round {i}"
    return actual


def seeded(case: Case) -> Callable[[], Any]:
    """The case on the device, with the same random numbers every time."""

    def run() -> Any:
        torch.manual_seed(0)
        return case("neuron")

    return run


def both_raise(case: Case, message: str = "") -> type[BaseException]:
    """The exception's type, after checking that CPU and device raise the same one."""
    kinds = []
    for device in ("cpu", "neuron"):
        try:
            case(device)
            torch.neuron.synchronize()
        except Exception as error:
            assert message in str(error), f"{device}: {error}"
            kinds.append(type(error))
        else:
            raise AssertionError(f"{device} did not raise")
    assert kinds[0] is kinds[1], kinds
    return kinds[1]
