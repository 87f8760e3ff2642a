"""The executables kept loaded stay within their memory bound, and evicted ones come back."""

from __future__ import annotations

import pytest

from support import output_of

SHAPES = """
    import torch
    from torch_neuronx import _C
    limit = 8 << 20
    worst = 0
    count = {count}
    for n in range(1, count + 1):
        y = torch.empty(n, dtype=torch.int64, device="neuron")
        y.fill_(n)
        if n % 50 == 0 or n == count:
            assert y.sum(0, keepdim=True)[0].item() == n * n, n
        worst = max(worst, _C.store_stats()["resident_bytes"])
    torch.neuron.synchronize()
    stats = _C.store_stats()
    print(stats, worst)
    assert stats["limit_bytes"] == limit
    assert worst <= limit and stats["resident_bytes"] <= limit
    assert stats["evictions"] > 0
    # What was just compiled is launched before it is evicted.
    assert stats["reloads"] < count // 10
    # The first ones were evicted; they come back and are right.
    for n in (1, 2, 3, count // 2):
        before = _C.store_stats()["reloads"]
        y = torch.empty(n, dtype=torch.int64, device="neuron")
        y.fill_(7)
        assert y.tolist() == [7] * n
        assert _C.store_stats()["reloads"] > before, n
    print("done", count)
"""


def test_three_hundred_shapes_within_eight_mebibytes() -> None:
    text = output_of(SHAPES.replace("{count}", "300"), TORCH_NEURONX_EXECUTABLE_MEMORY_MB="8")
    assert text.strip().endswith("done 300")


@pytest.mark.full
def test_twenty_thousand_shapes_within_eight_mebibytes() -> None:
    text = output_of(
        SHAPES.replace("{count}", "20000"),
        timeout_s=7200,
        TORCH_NEURONX_EXECUTABLE_MEMORY_MB="8",
        TORCH_NEURONX_DISABLE_NEFF_CACHE="1",
    )
    assert text.strip().endswith("done 20000")


def test_eviction_with_launches_in_flight() -> None:
    text = output_of(
        """
        import torch
        from torch_neuronx import _C
        x = torch.ones(400, 400, device="neuron")
        total = torch.zeros((), device="neuron")
        for n in range(1, 60):
            x = (x @ x) / 400
            total += x[:n].sum() / n
        print(round(total.item(), 3), _C.store_stats()["evictions"] > 0)
        """,
        TORCH_NEURONX_EXECUTABLE_MEMORY_MB="1",
    )
    assert text.split() == ["23600.0", "True"]


def test_a_random_operator_that_comes_back_draws_the_same_numbers() -> None:
    """Its executable is evicted in between; loading it again advances the generator no further."""
    text = output_of(
        """
        import torch
        from torch_neuronx import _C
        def draw():
            torch.neuron.manual_seed(5)
            return torch.rand(7, device="neuron").tolist(), torch.neuron.get_rng_state().tolist()
        first = draw()
        evictions = _C.store_stats()["evictions"]
        for n in range(1, 40):
            torch.empty(n, dtype=torch.int32, device="neuron").fill_(n)
        torch.neuron.synchronize()
        print(_C.store_stats()["evictions"] > evictions)
        reloads = _C.store_stats()["reloads"]
        print(draw() == first, _C.store_stats()["reloads"] > reloads)
        """,
        TORCH_NEURONX_EXECUTABLE_MEMORY_MB="1",
    )
    assert text.split() == ["True", "True", "True"]
