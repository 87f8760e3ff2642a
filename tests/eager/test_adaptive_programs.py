"""Random programs (``test_random_programs``), per-op and adaptive: the same, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adaptive_support import Fused, both, equal, no_budget  # noqa: F401
from eager.test_random_programs import STEP, run

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def compare(program: list[tuple[Any, ...]]) -> None:
    one_by_one, adaptive = both(lambda: list(run("neuron", program)), rounds=5)
    for i, (a, b) in enumerate(zip(one_by_one, adaptive, strict=True)):
        assert equal(a, b), f"round {i}"


@pytest.mark.parametrize("count", [12, pytest.param(150, marks=pytest.mark.full)])
def test_adaptive_equals_per_op(count: int) -> None:
    programs = given(st.lists(STEP, min_size=6, max_size=24))
    options = settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=QUIET,
    )
    with Fused() as fused:
        options(programs(compare))()
    assert fused.operators > 0
