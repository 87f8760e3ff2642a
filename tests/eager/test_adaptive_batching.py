"""Adaptive eager's cold misses: what nobody compiled yet is compiled together."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_neuronx
from adaptive_support import bits, compiled, equal, no_budget  # noqa: F401
from support import last_event
from torch_neuronx import _C
from torch_neuronx.compiler import planning, session
from torch_neuronx.eager import batching, fusing

_sizes = itertools.count(1031, 2)


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is on the disk, nor known from another test."""
    monkeypatch.setattr(planning, "from_disk", lambda *_, **__: None)
    monkeypatch.setattr(session.compiler(), "_load", lambda *_: None)
    monkeypatch.setattr(batching, "_known", collections.OrderedDict())
    monkeypatch.setattr(batching, "_later", [])
    yield


@pytest.fixture
def size() -> int:
    """A size that no other test used."""
    return next(_sizes)


def tensors(*shape: int, count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to("neuron") for _ in range(count)]


class Batched:
    """What was batched and compiled inside of the block."""

    def __enter__(self) -> Batched:
        compiled()
        self._before = torch_neuronx.eager_stats()
        self._last = last_event()
        return self

    def __exit__(self, *_: object) -> None:
        torch.neuron.synchronize()
        now = torch_neuronx.eager_stats()
        self.batches = now["batches"] - self._before["batches"]
        self.operators = now["batched_operators"] - self._before["batched_operators"]
        self.taken_apart = now["batches_taken_apart"] - self._before["batches_taken_apart"]
        self.compiles = len(session.events(self._last))


def chain(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = x * y
    z = z + y
    z = z / 3
    w = (z + 1e8) - 1e8
    z = z.tanh() * x
    return [w, z, z.sin()]


def same_as_one_by_one(function: Callable[[], Any]) -> Batched:
    """Adaptive first, while everything is cold; then one by one."""
    with Batched() as batched, torch_neuronx.eager_mode("adaptive"):
        torch.manual_seed(0)
        cold_bits = bits(function())
    torch.manual_seed(0)
    assert equal(cold_bits, bits(function()))
    return batched


def test_a_cold_program_is_one_executable(size: int) -> None:
    x, y = tensors(size)
    batched = same_as_one_by_one(lambda: chain(x, y))
    assert batched.batches == 1
    assert batched.operators >= 8
    assert batched.compiles == 1


def test_a_long_program_is_cut(size: int) -> None:
    x, y = tensors(size)

    def run() -> torch.Tensor:
        z = x
        for i in range(150):
            z = (z + y).sin() if i % 3 else z * y - 0.5
        return z

    batched = same_as_one_by_one(run)
    assert batched.batches >= 3
    assert batched.operators >= 290


def test_the_second_time_nothing_new_is_compiled_before_it_runs(size: int) -> None:
    x, y = tensors(size)
    with torch_neuronx.eager_mode("adaptive"), Batched() as first:
        chain(x, y)[1].cpu()
    with torch_neuronx.eager_mode("adaptive"):
        before = len(batching._known)
        with Batched() as second:
            results = [t.cpu() for t in chain(x, y)]
        assert len(batching._known) == before + 1  # all results are needed now, and so one more
        with Batched() as third:
            again = [t.cpu() for t in chain(x, y)]
    assert first.batches == second.batches == 1
    assert third.batches <= 1
    assert all(map(torch.equal, results, again))


def test_kernels_that_keep_coming_are_compiled_by_themselves(size: int) -> None:
    x, y = tensors(size)
    with torch_neuronx.eager_mode("adaptive"):
        for i in range(8):  # each is another program
            z = x + y
            for _ in range(i):
                z = z * y
            (z - x).cpu()
            compiled()
        with Batched() as batched:
            ((x + y) * y * (x + y) - x).cpu()
    assert batched.batches == 0
    assert batched.compiles == 0


def test_layers_are_cut_alike() -> None:
    width = next(_sizes)
    x, y = tensors(width)
    with torch_neuronx.eager_mode("adaptive"), Batched() as batched:
        z = x
        for _ in range(12):
            a = (z + y) * 0.5
            b = a.sin() - z.abs() / 3
            c = torch.where(b > 0, a.tanh(), y).sqrt()
            z = torch.maximum(c, b.exp()).floor() - torch.minimum(a, c).neg().cos()
        z.cpu()
    assert batched.operators > 12 * 12
    assert batched.compiles < batched.batches / 2


def test_heavy_operators_are_compiled_by_themselves(size: int) -> None:
    x, y = tensors(size)

    def run() -> list[torch.Tensor]:
        z = (x + y).sin() * 2
        w = (z @ y).reshape(1) + z
        return [w.softmax(0) - x * 2]

    batched = same_as_one_by_one(run)
    # A run, the product, what is added to it, the softmax, and a run.
    assert batched.compiles == 5


def test_lengths_that_keep_changing_cost_one_compile_each() -> None:
    lengths = [next(_sizes) for _ in range(6)]
    whole, other = tensors(lengths[-1])
    found = []
    for n in lengths:
        with Batched() as batched, torch_neuronx.eager_mode("adaptive"):
            found.append(chain(whole[:n], other[:n])[1].cpu())
        assert batched.compiles == 1
    for n, z in zip(lengths, found, strict=True):
        assert torch.equal(z, chain(whole[:n], other[:n])[1].cpu())


def test_in_place_and_views_across_a_batch(size: int) -> None:
    def run() -> list[torch.Tensor]:
        base, new = tensors(6, size)
        rows = base[1:3]
        for i in range(3):
            rows[i % 2].mul_(1.5)
            base[:, i : i + 1].add_(new[:, :1])
            rows.t()[2:4] += 0.25
            base.relu_()
        return [base, rows, base.t() @ new]

    assert same_as_one_by_one(run).operators > 0


def test_a_training_step_from_nothing(size: int) -> None:
    def run() -> list[torch.Tensor]:
        model = nn.Sequential(nn.Linear(8, size), nn.GELU(), nn.LayerNorm(size), nn.Linear(size, 3))
        model.to("neuron")
        adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, target = tensors(5, 8)[0], torch.arange(5, device="neuron") % 3
        losses = []
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(x), target)
            loss.backward()
            adam.step()
            adam.zero_grad()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    batched = same_as_one_by_one(run)
    assert batched.operators > 0


def test_random_numbers_are_those_of_one_by_one(size: int) -> None:
    (x,) = tensors(size, count=1)

    def run() -> list[torch.Tensor]:
        y = nn.functional.dropout(x + 1, 0.4)
        noise = torch.randn_like(y) * 0.5
        return [y * noise, torch.rand(size, device="neuron") + 1]

    same_as_one_by_one(run)


def test_streams_and_events_order_batches(size: int) -> None:
    x, y = tensors(size)

    def run() -> list[torch.Tensor]:
        side = torch.neuron.Stream()
        z = (x + y) * 2
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            w = (z - x) / 3
            event = side.record_event()
        u = z.sin() + 1
        torch.neuron.current_stream().wait_event(event)
        return [u + w, w]

    same_as_one_by_one(run)


@pytest.mark.parametrize("what", ["event", "stream"])
def test_asking_whether_it_is_over_makes_it_begin(size: int, what: str) -> None:
    x, y = tensors(size)
    with torch_neuronx.eager_mode("adaptive"):
        z = (x + y) * 2 - y
        event = torch.neuron.Event()
        event.record()
        asked = event if what == "event" else torch.neuron.current_stream()
        while not asked.query():
            pass
    assert torch.equal(z.cpu(), (x.cpu() + y.cpu()) * 2 - y.cpu())


def test_a_batch_that_cannot_be_compiled_is_taken_apart(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = tensors(size)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such sequence")

    monkeypatch.setattr(fusing, "_sequence", broken)
    batched = same_as_one_by_one(lambda: chain(x, y))
    assert batched.taken_apart == 1
    assert batched.compiles == 7  # two of the eight operators are one kernel


def test_a_request_that_fails_leaves_the_operators_alone(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = tensors(size)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(fusing, "fuse", broken)
    batched = same_as_one_by_one(lambda: chain(x, y))
    assert batched.batches == 0


def test_only_what_depends_on_a_lost_value_is_lost(size: int) -> None:
    x, y = tensors(size)
    weight = torch.randn(4, size).to("neuron")
    with torch_neuronx.eager_mode("adaptive"):
        bad = nn.functional.embedding(torch.tensor([7], device="neuron"), weight) * 2 + 1
        good = (x + y) * 3
        with pytest.raises(IndexError):
            torch.neuron.synchronize()
        assert torch.equal(good.cpu(), (x.cpu() + y.cpu()) * 3)
    assert bad.shape == (1, size)


def test_switching_the_mode_off_keeps_what_waits(size: int) -> None:
    x, y = tensors(size)
    with torch_neuronx.eager_mode("adaptive"):
        z = (x + y) * 2
    w = z - y
    assert torch.equal(w.cpu(), (x.cpu() + y.cpu()) * 2 - y.cpu())


def test_stats_have_the_names_that_are_documented() -> None:
    assert {"batches", "batched_operators", "batches_taken_apart"} <= set(_C.eager_stats(0))
