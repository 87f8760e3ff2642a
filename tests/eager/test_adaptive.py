"""Adaptive eager: what repeats is fused, and nobody can tell but by the clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_neuronx
from adaptive_support import Fused, bits, both, compiled, equal, no_budget  # noqa: F401
from support import run_python
from torch_neuronx import _C


def tensors(*shape: int, count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to("neuron") for _ in range(count)]


def check(function: Any, rounds: int = 8) -> int:
    """Compares the modes; how many operators ran in fused executables."""
    with Fused() as fused:
        one_by_one, adaptive = both(function, rounds)
    for i, (a, b) in enumerate(zip(one_by_one, adaptive, strict=True)):
        assert equal(a, b), f"round {i}"
    return fused.operators


def test_a_chain_becomes_one_launch() -> None:
    x, y = tensors(33)

    def chain() -> torch.Tensor:
        z = x * y
        z = z + y
        z = z / 3
        z = (z + 1e8) - 1e8
        return z.tanh() * x

    with torch_neuronx.eager_mode("adaptive"):
        for _ in range(6):
            chain().cpu()
            compiled()
        before = _C.counters()["launches"]
        with Fused() as fused:
            chain().cpu()
        # The plugin's launch and the device's are counted each.
        assert _C.counters()["launches"] - before == 2
    assert fused.launches == 1
    assert fused.operators == 7
    assert check(chain) > 0


def test_a_changing_number_is_a_parameter() -> None:
    x, y = tensors(17)
    count = 0

    def scale() -> torch.Tensor:
        nonlocal count
        count += 1
        return ((x * (count % 8)) + y * 0.5) - count % 8

    with Fused() as fused:
        assert check(scale) > 0
    assert fused.compiles <= 2


def test_in_place_writes_through_views() -> None:
    def run() -> list[torch.Tensor]:
        base, new = tensors(4, 6)
        rows = base[1:3]
        for i in range(3):
            rows[i % 2].mul_(1.5)
            base[:, i : i + 1].add_(new[:, :1])
            rows.t()[2:4] += 0.25
            base.relu_()
        return [base, rows, base.t() @ new]

    assert check(run) > 0


def test_a_loop_without_boundaries() -> None:
    x, y = tensors(9)
    state = [x.clone()]

    def step() -> None:
        z = state[0] * y
        z += 0.5
        state[0] = z.sigmoid() - y

    def run() -> torch.Tensor:
        state[0] = x.clone()
        for _ in range(40):
            step()
        return state[0]

    assert check(run) > 0


def test_random_operators_draw_the_same_numbers() -> None:
    (x,) = tensors(64, count=1)

    def run() -> list[torch.Tensor]:
        y = nn.functional.dropout(x + 1, 0.4)
        noise = torch.randn_like(y) * 0.5
        return [y * noise, torch.rand(8, device="neuron") + 1]

    assert check(run) > 0


def test_a_result_that_is_kept_only_later() -> None:
    x, y = tensors(12)
    rounds = 0
    kept: list[torch.Tensor] = []

    def run() -> list[torch.Tensor]:
        nonlocal rounds
        rounds += 1
        inner = x * y
        outer = (inner + 1).tanh() - y
        kept[:] = [inner] if rounds % 12 > 6 else []
        return [outer, *kept]

    assert check(run, rounds=12) > 0


def test_a_program_that_goes_another_way() -> None:
    x, y = tensors(12)
    rounds = 0

    def run() -> torch.Tensor:
        nonlocal rounds
        rounds += 1
        z = x + y
        z = z * 2
        z = z.exp() if rounds % 8 == 6 else z.sin()
        if rounds % 8 == 7:
            assert z.sum().item() == z.sum().item()  # reads in the middle
        return (z - 1) * y

    assert check(run) > 0


def test_inputs_may_be_anything_the_next_time() -> None:
    x, y = tensors(12)
    rounds = 0

    def run() -> list[torch.Tensor]:
        nonlocal rounds
        rounds += 1
        a = x.clone()
        b = a if rounds % 8 == 6 else y.clone()  # the same storage once, two otherwise
        c = a * b
        a.add_(c)
        return [a.sub_(b), b, c]

    assert check(run) > 0


def test_events_complete_without_a_read() -> None:
    x, y = tensors(12)

    def work() -> torch.Tensor:
        return ((x + y) * 2).tanh() - y

    with torch_neuronx.eager_mode("adaptive"):
        for _ in range(5):
            work()
            torch.neuron.synchronize()
            compiled()
        z = x + y  # held, being how the sequence begins
        event = torch.Event("neuron")
        event.record()
        event.synchronize()
        assert event.query()
        stream = torch.neuron.current_stream()
        z = z + x + y
        while not stream.query():
            pass
    assert equal(bits(z), bits(x + y + x + y))


def test_an_index_error_names_its_line() -> None:
    (x,) = tensors(4, count=1)
    good, bad = (torch.tensor([i]).to("neuron") for i in (1, 7))

    def run(index: torch.Tensor) -> torch.Tensor:
        z = x * 2 + 1
        z = z.index_select(0, index)
        return (z - 1) * 3

    expected = bits(run(good))
    line = run.__code__.co_firstlineno + 2
    with torch_neuronx.eager_mode("adaptive"):
        for _ in range(6):
            run(good).cpu()
            compiled()
        with pytest.raises(IndexError, match=rf"test_adaptive\.py:{line}\b"):
            run(bad).cpu()
        assert equal(bits(run(good)), expected)


def test_an_exception_leaves_true_values() -> None:
    x, y = tensors(12)

    def run(stop: bool) -> None:
        x.add_(y)
        x.mul_(0.5)
        if stop:
            raise KeyError("stop")
        x.sub_(y)

    def rounds() -> torch.Tensor:
        x.copy_(tensors(12)[0])
        for i in range(8):
            try:
                run(i == 6)
            except KeyError:
                pass
            torch.neuron.synchronize()
            compiled()
        return x.clone()

    assert check(rounds, rounds=2) > 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, again: bool = False) -> torch.Tensor:
        def middle(h: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(nn.functional.gelu(self.norm(h)), 0.1)

        h = self.first(x)
        return self.last(checkpoint(middle, h, use_reentrant=False) if again else middle(h))


@pytest.mark.parametrize("way", ["plain", "hooks", "checkpoint", "anomaly", "retain_graph"])
def test_training_steps(way: str) -> None:
    def run() -> list[Any]:
        torch.manual_seed(1)
        model = Model().to("neuron")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(2)
        seen: list[Any] = []
        if way == "hooks":
            model.norm.register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
            model.first.weight.register_hook(lambda g: g * 0.5)
        for step in range(7):
            x = torch.randn(5, 8, generator=generator).to("neuron")
            with torch.autograd.set_detect_anomaly(way == "anomaly"):
                loss = model(x, way == "checkpoint").square().mean()
                loss.backward(retain_graph=way == "retain_graph")
                if way == "retain_graph":
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 3 == 0:
                seen.append(loss.item())
            compiled()
        return [seen, list(model.parameters())]

    assert check(run, rounds=1) > 0


def test_two_threads() -> None:
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        x, y = tensors(20 + number)
        for _ in range(30):
            z = ((x + y) * y - x).tanh() * 2
            x = z + y
        results[number] = bits(x)

    expected: dict[int, Any] = {}
    for number in range(2):
        work(number)
        expected[number] = results[number]
    with torch_neuronx.eager_mode("adaptive"):
        for _ in range(3):
            threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert equal([*results.values()], [results[n] for n in results])
            assert all(equal(results[n], expected[n]) for n in range(2))
            compiled()


def test_streams_keep_their_order() -> None:
    x, y = tensors(16)
    other = torch.neuron.Stream()

    def run() -> list[torch.Tensor]:
        z = x + y
        z = z * 2
        with torch.neuron.stream(other):
            w = z - y  # waits for nothing: the order is the program's
            w = w * w
        z.add_(1)
        return [z, w]

    check(run)


def test_memory_high_water_mark() -> None:
    x, y = tensors(1 << 16)

    def run() -> torch.Tensor:
        z = x
        for _ in range(10):
            z = z * y
            z = z + x
        return z

    peaks = {}
    for mode in ("per-op", "adaptive"):
        with torch_neuronx.eager_mode(mode):
            for _ in range(5):
                run()
                torch.neuron.synchronize()
                compiled()
            torch.neuron.reset_peak_memory_stats()
            for _ in range(3):
                run()
                torch.neuron.synchronize()
        peaks[mode] = torch.neuron.max_memory_allocated()
    assert peaks["adaptive"] <= 1.1 * peaks["per-op"]


def test_off_under_deterministic_algorithms() -> None:
    x, y = tensors(16)
    torch.use_deterministic_algorithms(True)
    try:
        with torch_neuronx.eager_mode("adaptive"):
            before = torch_neuronx.eager_stats()["recorded"]
            for _ in range(6):
                ((x + y) * y).tanh().cpu()
            assert torch_neuronx.eager_stats()["recorded"] == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_modes_nest_and_unknown_ones_are_refused() -> None:
    torch.neuron.synchronize()
    outside = _C.eager_mode()
    with torch_neuronx.eager_mode("adaptive"):
        with torch_neuronx.eager_mode("blocking"):
            assert _C.eager_mode() == _C.EagerMode.BLOCKING
        assert _C.eager_mode() == _C.EagerMode.ADAPTIVE
    assert _C.eager_mode() == outside
    with (
        pytest.raises(ValueError, match="expected one of per-op, adaptive, blocking, got 'fast'"),
        torch_neuronx.eager_mode("fast"),
    ):
        pass


def test_beyond_the_budget_operators_run_one_by_one() -> None:
    (x,) = tensors(77, count=1)
    _C.set_eager_limits(0, 128)
    with Fused() as fused:
        assert check(lambda: ((x + 1) * 3).tanh() - 2) == 0
    assert fused.compiles == 0


def test_environment_fork_and_the_end_of_a_program() -> None:
    code = """
        import multiprocessing, os, torch, torch_neuronx
        from torch.utils.data import DataLoader, TensorDataset
        from torch_neuronx.compiler import session

        def child(queue):
            try:
                torch.ones(2, device="neuron") + 1
            except RuntimeError as error:
                queue.put(str(error))

        x = torch.arange(8.0).to("neuron")
        def work():
            return ((x + 1) * 2).tanh() - x
        for _ in range(6):
            work()
            torch.neuron.synchronize()
            session.compiler().drain()
        assert torch_neuronx.eager_stats()["fused_launches"] > 0
        y = x + 1  # held
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print("fork" in queue.get())
        process.join()
        loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, num_workers=1)
        print(sum((b.to("neuron") * 2).sum().item() for (b,) in loader))
        print(y.tolist()[-1])
        x + 1  # held until the end
    """
    done = run_python(code, TORCH_NEURONX_EAGER="adaptive")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "12.0", "8.0"]
    assert "error" not in done.stderr.lower()
