"""Every case runs twice: operator by operator, and, in the full tier, adaptively."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import torch_neuronx
from adaptive_support import no_budget  # noqa: F401
from regressions import both


@pytest.fixture(params=["per-op", pytest.param("adaptive", marks=pytest.mark.full)], autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The eager mode in which the whole test runs."""
    monkeypatch.setattr(both, "MODE", request.param)
    with torch_neuronx.eager_mode(request.param):
        yield request.param
