"""A guess that asks for too much memory raises, and the process goes on."""

from __future__ import annotations

import resource

import pytest
import torch

from neuron_readiness.sweep import memory


def test_what_is_too_large_raises_and_the_bound_ends() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(RuntimeError, match="memory"), memory.bounded(1 << 30):
        torch.empty(1 << 32, dtype=torch.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with memory.bounded(1 << 30):
        assert torch.ones(1 << 20).sum() == 1 << 20
