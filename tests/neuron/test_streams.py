"""``torch.neuron.Stream``: order inside a stream, waits across streams, the current stream."""

from __future__ import annotations

import threading

import pytest
import torch

from gates import Gate
from support import assert_same, no_fallback


@pytest.fixture(autouse=True)
def _default_stream() -> object:
    yield
    torch.neuron.set_stream(torch.neuron.default_stream())
    torch.neuron.synchronize()


# -- What a stream is -----------------------------------------------------------------------------


def test_streams_are_compared_and_hashed_by_device_and_number() -> None:
    a, b = torch.neuron.Stream(), torch.neuron.Stream()
    same = torch.neuron.Stream(
        stream_id=a.stream_id, device_index=a.device_index, device_type=a.device_type
    )
    assert a == same and hash(a) == hash(same) and a != b and len({a, same, b}) == 2
    assert a != torch.neuron.default_stream()
    assert a.device == torch.device("neuron:0") and a.device_index == 0
    assert "neuron:0" in repr(a) and str(a.stream_id) in repr(a)
    assert a != "a stream"


def test_every_way_to_make_a_stream() -> None:
    for stream in (
        torch.neuron.Stream(),
        torch.neuron.Stream("neuron"),
        torch.neuron.Stream("neuron:0"),
        torch.neuron.Stream(0),
        torch.neuron.Stream(torch.device("neuron")),
        torch.Stream("neuron"),
        torch.Stream(device="neuron", priority=-1),
    ):
        assert stream.device == torch.device("neuron:0")
        assert stream != torch.neuron.default_stream()
        with torch.neuron.stream(stream):
            assert_same(torch.ones(2, device="neuron") + 1, torch.full((2,), 2.0))


def test_priorities() -> None:
    low, high = torch.neuron.Stream.priority_range()
    assert (low, high) == (0, -1)
    assert torch.neuron.Stream().priority == low
    assert torch.neuron.Stream(priority=-1).priority == high
    # The nearest one, as torch.cuda.Stream documents.
    assert torch.neuron.Stream(priority=5).priority == low
    assert torch.neuron.Stream(priority=-100).priority == high
    # torch's own class reaches the same pools.
    assert torch.Stream("neuron", priority=-1) in {
        torch.neuron.Stream(priority=-1) for _ in range(32)
    }


@pytest.mark.parametrize("priority", ["high", 0.5, None, True])
def test_a_priority_that_is_no_integer(priority: object) -> None:
    with pytest.raises(TypeError, match=r"priority.*integer"):
        torch.neuron.Stream(priority=priority)


def test_devices_that_a_stream_cannot_have() -> None:
    with pytest.raises(ValueError, match="Expected a neuron device"):
        torch.neuron.Stream("cpu")
    with pytest.raises(RuntimeError, match=r"neuron:7.*1 neuron device"):
        torch.neuron.Stream(7)


def test_a_number_that_no_stream_has() -> None:
    default = torch.neuron.default_stream()
    bad = torch.neuron.Stream(stream_id=1000, device_index=0, device_type=default.device_type)
    with pytest.raises(RuntimeError, match=r"no stream 1000"):
        bad.synchronize()


# -- The current stream ---------------------------------------------------------------------------


def test_the_context_manager_sets_and_restores() -> None:
    default = torch.neuron.default_stream()
    outer, inner = torch.neuron.Stream(), torch.neuron.Stream()
    assert torch.neuron.current_stream() == default
    with torch.neuron.stream(outer) as entered:
        assert entered is outer and torch.neuron.current_stream() == outer
        assert torch.accelerator.current_stream() == outer
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == outer
        with inner:
            assert torch.neuron.current_stream() == inner
        with pytest.raises(KeyError), torch.neuron.StreamContext(default):
            assert torch.neuron.current_stream() == default
            raise KeyError
        assert torch.neuron.current_stream() == outer
    assert torch.neuron.current_stream() == default
    torch.neuron.set_stream(inner)
    assert torch.neuron.current_stream("neuron:0") == inner
    torch.neuron.set_stream(None)
    assert torch.neuron.current_stream() == inner
    torch.accelerator.set_stream(outer)
    assert torch.neuron.current_stream() == outer


def test_every_thread_has_its_own_current_stream() -> None:
    mine = torch.neuron.Stream()
    seen = []
    with torch.neuron.stream(mine):
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.neuron.default_stream()]


# -- Order ----------------------------------------------------------------------------------------


def test_a_stream_does_not_wait_for_another() -> None:
    x = torch.arange(4.0, device="neuron")
    z = torch.ones(4, device="neuron")
    (z * 2).cpu()
    gate, side = Gate(), torch.neuron.Stream()
    with torch.neuron.stream(side):
        y = gate(x)
        assert not side.query()
    # Neither the default stream nor a third one is held by what `side` waits for.
    assert (z * 2).tolist() == [2.0] * 4
    assert torch.neuron.default_stream().query() and not side.query()
    gate.open()
    side.synchronize()
    assert side.query()
    assert_same(y, torch.arange(1.0, 5.0))


def test_order_inside_a_stream() -> None:
    x = torch.zeros(4, device="neuron")
    unrelated = torch.ones(3, device="neuron")
    (unrelated + 5).cpu()
    gate, stream = Gate(), torch.neuron.Stream()
    with torch.neuron.stream(stream):
        gate(x)
        done = torch.neuron.Event()
        later = unrelated + 5
        done.record()
    assert not done.query()
    gate.open()
    done.synchronize()
    assert later.tolist() == [6.0] * 3


def test_wait_stream_orders_what_comes_after() -> None:
    x = torch.zeros(4, device="neuron")
    first, second = torch.neuron.Stream(), torch.neuron.Stream()
    (x + 5).cpu()
    gate = Gate()
    with torch.neuron.stream(first):
        gate(x)
    second.wait_stream(first)
    other = torch.ones(4, device="neuron")
    with torch.neuron.stream(second):
        other + 5
    assert not second.query()
    gate.open()
    second.synchronize()
    assert first.query() and second.query()


def test_chains_of_waits_across_streams() -> None:
    streams = [torch.neuron.Stream() for _ in range(4)]
    x = torch.zeros(4, device="neuron")
    expected = torch.zeros(4)
    gate = Gate()
    with torch.neuron.stream(streams[0]):
        x = gate(x)
        expected = expected + 1
    for i in range(1, 40):
        stream, before = streams[i % 4], streams[(i - 1) % 4]
        stream.wait_event(before.record_event())
        with torch.neuron.stream(stream):
            x = x * 1.5 + i
            expected = expected * 1.5 + i
    assert not streams[39 % 4].query()
    gate.open()
    torch.neuron.current_stream().wait_stream(streams[39 % 4])
    assert_same(x, expected)


def test_streams_that_wait_for_each_other_in_turn() -> None:
    a, b = torch.neuron.Stream(), torch.neuron.Stream()
    big = torch.full((400, 400), 1 / 400, device="neuron")
    x, y = big, big
    for _ in range(30):
        with torch.neuron.stream(a):
            x = x @ big
        b.wait_stream(a)
        with torch.neuron.stream(b):
            y = y @ big
        a.wait_stream(b)
    a.synchronize()
    b.synchronize()
    assert a.query() and b.query()
    assert_same(x + y, torch.full((400, 400), 2 / 400))


def test_a_storage_keeps_its_order_without_events() -> None:
    """Two streams on one storage would be a race on a GPU; here it is the order of the program."""
    x = torch.zeros(4, device="neuron")
    gates = [Gate(), Gate()]
    side = torch.neuron.Stream()
    with torch.neuron.stream(side):
        y = gates[0](x)
    y.mul_(10)  # the default stream: must see what `side` makes
    with torch.neuron.stream(side):
        z = gates[1](y)
    x.add_(7)  # and must not overtake the read
    gates[1].open()
    assert not side.query()
    gates[0].open()
    assert z.tolist() == [11.0] * 4 and y.tolist() == [10.0] * 4 and x.tolist() == [7.0] * 4


def test_a_read_waits_for_the_stream_that_writes() -> None:
    x = torch.zeros(4, device="neuron")
    gate = Gate()
    with torch.neuron.stream(torch.neuron.Stream()):
        y = gate(x)
    timer = threading.Thread(target=gate.open)
    timer.start()
    assert y.tolist() == [1.0] * 4
    timer.join()


def test_the_higher_priority_goes_first() -> None:
    low, high = torch.neuron.Stream(priority=0), torch.neuron.Stream(priority=-1)
    x = torch.zeros(4, device="neuron")
    gate = Gate()
    with torch.neuron.stream(torch.neuron.Stream()):
        root = gate(x)
    marks = {}
    for name, stream in (("low", low), ("high", high)):
        with torch.neuron.stream(stream):
            marks[name] = torch.neuron.Event(enable_timing=True)
            root + 1
            marks[name].record()
    gate.open()
    torch.neuron.synchronize()
    assert marks["high"].elapsed_time(marks["low"]) >= 0


def test_random_numbers_follow_the_order_of_issue() -> None:
    torch.manual_seed(3)
    expected = [torch.rand(4, device="neuron").cpu() for _ in range(2)]
    torch.manual_seed(3)
    gate = Gate()
    with torch.neuron.stream(torch.neuron.Stream()):
        gate(torch.zeros(4, device="neuron"))
        first = torch.rand(4, device="neuron")
    second = torch.rand(4, device="neuron")
    assert torch.equal(second.cpu(), expected[1])
    gate.open()
    assert torch.equal(first.cpu(), expected[0])


# -- Tensors on streams ---------------------------------------------------------------------------


def test_record_stream() -> None:
    x = torch.ones(1000, device="neuron")
    side = torch.neuron.Stream()
    gate = Gate()
    with no_fallback(), torch.neuron.stream(side):
        y = gate(x)
        for stream in (side, torch.neuron.current_stream(), torch.neuron.default_stream()):
            x.record_stream(stream)
    del x
    torch.full((1000,), 5.0, device="neuron")  # may lie where x was
    gate.open()
    side.synchronize()
    assert_same(y, torch.full((1000,), 2.0))


def test_copies_on_a_side_stream() -> None:
    side = torch.neuron.Stream()
    batches = [torch.full((50, 3), float(i)).pin_memory() for i in range(5)]
    total = torch.zeros(50, 3, device="neuron")
    for batch in batches:
        with torch.neuron.stream(side):
            on_device = batch.to("neuron", non_blocking=True)
        torch.neuron.current_stream().wait_stream(side)
        on_device.record_stream(torch.neuron.current_stream())
        total += on_device
    assert_same(total, torch.full((50, 3), 10.0))


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # as intended here
def test_backward_runs_on_the_streams_of_forward() -> None:
    seen: list[tuple[str, torch.Stream]] = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor, name: str) -> torch.Tensor:
            ctx.name = name  # type: ignore[attr-defined]
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            seen.append((ctx.name, torch.neuron.current_stream()))  # type: ignore[attr-defined]
            return gradient * 2, None

    a, b = torch.neuron.Stream(), torch.neuron.Stream()
    x = torch.ones(8, device="neuron", requires_grad=True)
    for stream in (a, b):
        stream.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(a):
        y = Watch.apply(x, "a")
    with torch.neuron.stream(b):
        z = Watch.apply(x, "b")
    for stream in (a, b):
        torch.neuron.current_stream().wait_stream(stream)
    loss = (Watch.apply(y, "default") + z).sum()
    loss.backward()
    assert dict(seen) == {"a": a, "b": b, "default": torch.neuron.default_stream()}
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    assert_same(x.grad, torch.full((8,), 6.0))


def test_a_pool_has_32_streams() -> None:
    streams = [torch.neuron.Stream() for _ in range(64)]
    assert len(set(streams)) == 32 and streams[0] == streams[32]
