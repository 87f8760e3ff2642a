"""``torch.neuron.Event``: completion, waiting, and time that is the device's (decision D11)."""

from __future__ import annotations

import time

import pytest
import torch

from gates import Gate


@pytest.fixture(autouse=True)
def _idle() -> object:
    torch.neuron.synchronize()
    yield
    torch.neuron.synchronize()


def timed() -> torch.Event:
    return torch.neuron.Event(enable_timing=True)


# -- Completion -----------------------------------------------------------------------------------


def test_an_unrecorded_event_is_complete() -> None:
    event = torch.neuron.Event()
    assert event.query()
    event.synchronize()
    event.wait()
    torch.neuron.current_stream().wait_event(event)


def test_every_way_to_make_an_event() -> None:
    for event in (
        torch.neuron.Event(),
        torch.neuron.Event(enable_timing=True, blocking=True, interprocess=False),
        torch.neuron.Event(True, True),
        torch.Event("neuron"),
        torch.Event(device="neuron", enable_timing=True),
        torch.neuron.Stream().record_event(),
    ):
        assert isinstance(event, torch.neuron.Event) and isinstance(event, torch.Event)
        assert event.device.type == "neuron"
        event.record()
        event.synchronize()
        assert event.query()
    assert not isinstance(torch.neuron.Stream(), torch.neuron.Event)


def test_an_event_is_not_shared_between_processes() -> None:
    with pytest.raises(NotImplementedError, match="interprocess"):
        torch.neuron.Event(interprocess=True)


def test_an_event_is_complete_when_the_work_before_it_is() -> None:
    gate, event = Gate(), torch.neuron.Event()
    event.record()
    assert event.query()
    with torch.neuron.stream(torch.neuron.Stream()) as side:
        gate(torch.zeros(4, device="neuron"))
        event.record(side)  # again, in another place
        after = torch.neuron.Event()
        after.record()
    assert not event.query() and not after.query()
    gate.open()
    event.synchronize()
    assert event.query() and after.query()


def test_a_wait_means_the_record_of_that_moment() -> None:
    first, second, waiting = (torch.neuron.Stream() for _ in range(3))
    event, gate = torch.neuron.Event(), Gate()
    event.record(first)
    waiting.wait_event(event)
    with torch.neuron.stream(second):
        gate(torch.zeros(4, device="neuron"))
    event.record(second)
    assert waiting.query() and not event.query()
    event.wait(waiting)
    assert not waiting.query()
    gate.open()
    waiting.synchronize()
    assert event.query()


def test_waiting_on_its_own_stream_is_nothing() -> None:
    event = torch.neuron.Event()
    event.record()
    event.wait()
    assert torch.neuron.current_stream().query()


def test_an_event_that_goes_before_its_work_is_done() -> None:
    gate = Gate()
    with torch.neuron.stream(torch.neuron.Stream()) as side:
        y = gate(torch.zeros(4, device="neuron"))
        event = timed()
        event.record()
    torch.neuron.current_stream().wait_event(event)
    del event
    gate.open()
    side.synchronize()
    assert y.tolist() == [1.0] * 4


# -- Time -----------------------------------------------------------------------------------------


def products(count: int) -> tuple[float, float]:
    """Milliseconds of that many matrix products: the events', and a host clock's around them."""
    a = torch.full((600, 600), 1 / 600, device="neuron")
    b = a @ a
    torch.neuron.synchronize()
    start, end = timed(), timed()
    before = time.perf_counter()
    start.record()
    for _ in range(count):
        b = b @ a
    end.record()
    torch.neuron.synchronize()
    device_ms = start.elapsed_time(end)
    return device_ms, 1e3 * (time.perf_counter() - before)


def test_elapsed_time_is_that_of_the_device() -> None:
    for count in (4, 16):
        device_ms, host_ms = products(count)
        # Both clocks saw the same work: the events lie within the host's window, and fill most of
        # it however busy the machine is.
        assert 0.2 * host_ms < device_ms <= host_ms


def test_elapsed_time_grows_with_the_work() -> None:
    a = torch.full((400, 400), 1 / 400, device="neuron")
    b = a @ a
    torch.neuron.synchronize()
    events = [timed() for _ in range(6)]
    events[0].record()
    for event in events[1:]:
        for _ in range(4):
            b = b @ a
        event.record()
    events[-1].synchronize()
    times = [events[0].elapsed_time(event) for event in events]
    assert times[0] == 0 and times == sorted(times) and times[-1] > times[1] > 0


def test_elapsed_time_of_events_that_waited_for_a_compile() -> None:
    gate = Gate()
    x = torch.zeros(4, device="neuron")
    start, end = timed(), timed()
    with torch.neuron.stream(torch.neuron.Stream()):
        start.record()
        gate(x)
        end.record()
    before = time.perf_counter()
    gate.open()
    compile_ms = 1e3 * (time.perf_counter() - before)
    end.synchronize()
    assert start.elapsed_time(end) >= compile_ms  # the device could not begin before


def test_elapsed_time_across_streams() -> None:
    a = torch.full((500, 500), 1 / 500, device="neuron")
    (a @ a).cpu()
    start, own, other = timed(), timed(), timed()
    side = torch.neuron.Stream()
    start.record()
    for _ in range(4):
        a = a @ a
    own.record()
    side.wait_event(own)
    other.record(side)
    side.synchronize()
    assert 0 < start.elapsed_time(own) <= start.elapsed_time(other)


def test_what_has_no_elapsed_time() -> None:
    a, b = timed(), timed()
    with pytest.raises(ValueError, match="must be recorded before"):
        a.elapsed_time(b)
    a.record()
    with pytest.raises(ValueError, match="must be recorded before"):
        a.elapsed_time(b)
    plain = torch.neuron.Event()
    plain.record()
    for pair in ((a, plain), (plain, a)):
        with pytest.raises(ValueError, match="enable_timing=True"):
            pair[0].elapsed_time(pair[1])
    gate = Gate()
    with torch.neuron.stream(torch.neuron.Stream()):
        gate(torch.zeros(4, device="neuron"))
        b.record()
    with pytest.raises(RuntimeError, match="must be completed before"):
        a.elapsed_time(b)
    gate.open()
    b.synchronize()
    assert a.elapsed_time(b) > 0
