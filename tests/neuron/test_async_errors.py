"""Errors of launches that have returned: who is named, where it surfaces, what goes on (D10)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gates import Gate, fault
from support import assert_same, output_of
from torch_neuronx import _C

RESOURCE_EXHAUSTED = 8


@pytest.fixture(autouse=True)
def _healthy() -> object:
    torch.neuron.synchronize()
    yield
    _C.clear_faults()
    torch.neuron.synchronize()  # nothing is left over


def here() -> str:
    return re.escape(Path(__file__).name) + r":\d+"


def large() -> torch.Tensor:
    """Operands of a product that still runs when its launch returns."""
    return torch.full((700, 700), 1 / 700, device="neuron")


def ready(x: torch.Tensor) -> torch.Tensor:
    """Compiles what the tests launch, so that faults meet launches."""
    ((x + 1) * 2).sum().cpu()
    torch.neuron.synchronize()
    return x


def fail_one(x: torch.Tensor, message: str) -> None:
    """A failed launch, without a synchronisation before it."""
    _C.inject_fault("execute", message)
    x + 1
    assert _C.clear_faults() == 1


def surface_by_event(y: torch.Tensor) -> None:
    event = torch.neuron.Event()
    event.record()
    event.synchronize()


POINTS: dict[str, Callable[[torch.Tensor], object]] = {
    "synchronize": lambda y: torch.neuron.synchronize(),
    "accelerator": lambda y: torch.accelerator.synchronize(),
    "stream": lambda y: torch.neuron.current_stream().synchronize(),
    "event": surface_by_event,
    "cpu": lambda y: y.cpu(),
    "item": lambda y: y.sum().item(),
    "tolist": lambda y: y.tolist(),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("call", ["execute", "complete"])
def test_a_launch_that_fails_is_raised_at_the_next_synchronisation(call: str, point: str) -> None:
    x = ready(torch.arange(6.0, device="neuron").reshape(2, 3))
    with fault(call, "the core is on fire"):
        y = x + 1  # nothing is raised here
    with pytest.raises(RuntimeError, match="the core is on fire") as raised:
        POINTS[point](y)
    text = str(raised.value)
    assert "aten::add" in text and "float32[2, 3]" in text
    assert "stream 0 of neuron:0" in text and re.search("issued at .*" + here(), text)
    # The device works, and what was not part of it is untouched.
    torch.neuron.synchronize()
    assert_same(x, torch.arange(6.0).reshape(2, 3))
    assert_same(x + 1, torch.arange(1.0, 7.0).reshape(2, 3))


def test_a_launch_that_fails_while_it_runs() -> None:
    a = large()
    (a @ a).cpu()
    with fault("complete", "lost a wheel"):
        a @ a
    with pytest.raises(RuntimeError, match="lost a wheel") as raised:
        torch.neuron.synchronize()
    assert "aten::mm(float32[700, 700], float32[700, 700])" in str(raised.value)
    assert re.search(here(), str(raised.value))
    assert_same(a @ a, torch.full((700, 700), 1 / 700))


def test_the_result_of_a_failed_launch_raises_whenever_it_is_read() -> None:
    x = ready(torch.ones(3, device="neuron"))
    with fault("execute", "boom"):
        y = x + 1
    with pytest.raises(RuntimeError, match="boom"):
        torch.neuron.synchronize()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"boom.*aten::add"):
            y.cpu()
    with pytest.raises(RuntimeError, match="boom"):
        (y + 1).cpu()
    y.copy_(torch.zeros(3))  # a new value heals it
    assert_same(y + 1, torch.ones(3))


def test_later_victims_are_counted_and_the_earliest_is_named() -> None:
    x = ready(torch.ones(3, device="neuron"))
    with fault("execute", "the first"):
        y = x + 1
    for _ in range(4):
        y = y * 2
    with pytest.raises(RuntimeError, match=r"the first.*\n.*4 later operator") as raised:
        torch.neuron.synchronize()
    assert "aten::add" in str(raised.value) and "aten::mul" not in str(raised.value)


def test_the_earliest_by_issue_not_by_discovery() -> None:
    x = ready(torch.ones(3, device="neuron"))
    index = torch.tensor([2], device="neuron")
    x.gather(0, index).cpu()
    index.fill_(9)
    torch.neuron.synchronize()
    x.gather(0, index)  # found at the synchronisation, when its error word is read
    fail_one(x, "found at once")
    with pytest.raises(RuntimeError, match=r"aten::gather.*\n.*1 later operator"):
        torch.neuron.synchronize()


def test_memory_that_the_plugin_does_not_have() -> None:
    x = ready(torch.ones(3, device="neuron"))
    with fault("execute", "out of device memory", code=RESOURCE_EXHAUSTED):
        x + 1
    with pytest.raises(torch.OutOfMemoryError, match=r"out of device memory.*aten::add"):
        torch.neuron.synchronize()
    with (
        fault("upload", "no room for it", code=RESOURCE_EXHAUSTED),
        pytest.raises(torch.OutOfMemoryError, match="no room for it"),
    ):
        torch.ones(5).to("neuron")
    assert_same(x + 1, torch.full((3,), 2.0))


def test_a_copy_to_the_host_that_fails() -> None:
    x = torch.ones(200, 200, device="neuron")  # too large to be read in place
    with fault("download", "the link is down"), pytest.raises(RuntimeError, match="link is down"):
        x.cpu()
    assert_same(x, torch.ones(200, 200))


def test_a_failed_write_in_place_leaves_old_or_no_contents() -> None:
    x = ready(torch.ones(3, device="neuron"))
    x.add_(1)
    assert x.tolist() == [2.0] * 3
    with fault("execute", "refused"):
        x.add_(1)
    with pytest.raises(RuntimeError, match=r"refused.*aten::add_"):
        torch.neuron.synchronize()
    assert x.tolist() == [2.0] * 3
    with fault("complete", "gone with its buffer"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="gone with its buffer"):
        torch.neuron.synchronize()
    with pytest.raises(RuntimeError, match="gone with its buffer"):
        x.cpu()
    x.fill_(4)
    assert x.tolist() == [4.0] * 3


def test_a_compile_that_fails_while_launches_wait() -> None:
    gate = Gate()
    x = torch.zeros(4, device="neuron")
    y = gate(x)
    z = y + 1
    gate.fail("the compiler gave up")
    with pytest.raises(RuntimeError, match="the compiler gave up") as raised:
        torch.neuron.synchronize()
    assert re.search(r"float32\[4\].*issued at .*gates.py:\d+", str(raised.value))
    assert "1 later operator" in str(raised.value)
    with pytest.raises(RuntimeError, match="the compiler gave up"):
        z.cpu()


# -- Streams --------------------------------------------------------------------------------------


def test_an_error_belongs_to_its_stream() -> None:
    x = ready(torch.ones(3, device="neuron"))
    side = torch.neuron.Stream()
    with torch.neuron.stream(side), fault("execute", "side's own"):
        x + 1
    torch.neuron.default_stream().synchronize()
    assert x.tolist() == [1.0] * 3  # a read on the default stream
    with pytest.raises(RuntimeError, match=rf"side's own.*stream {side.stream_id} of neuron:0"):
        side.synchronize()


def test_a_stream_that_waited_surfaces_it() -> None:
    x = ready(torch.ones(3, device="neuron"))
    index = torch.tensor([9], device="neuron")
    torch.neuron.synchronize()
    for issue in (lambda: x.gather(0, index), lambda: fail_one(x, "boom")):
        side = torch.neuron.Stream()
        with torch.neuron.stream(side):
            issue()
        torch.neuron.current_stream().wait_stream(side)
        with pytest.raises(RuntimeError, match=rf"stream {side.stream_id} of neuron:0"):
            (x + 1).cpu()
        side.synchronize()  # reported once


def test_errors_of_two_streams_are_both_told() -> None:
    x = ready(torch.ones(3, device="neuron"))
    for i in range(2):
        with torch.neuron.stream(torch.neuron.Stream()):
            fail_one(x, f"number {i}")
    with pytest.raises(RuntimeError, match=r"(?s)^number 0.*another stream.*number 1"):
        torch.neuron.synchronize()


def test_an_event_before_the_error_does_not_raise_for_what_runs_later() -> None:
    x = ready(torch.ones(3, device="neuron"))
    index = torch.tensor([9], device="neuron")
    torch.neuron.synchronize()
    event = torch.neuron.Event()
    event.record()
    x.gather(0, index)
    event.synchronize()
    with pytest.raises(RuntimeError, match="aten::gather"):
        torch.neuron.synchronize()


def test_queries_do_not_raise() -> None:
    x = ready(torch.ones(3, device="neuron"))
    event = torch.neuron.Event()
    with fault("execute", "boom"):
        x + 1
    event.record()
    assert event.query() and torch.neuron.current_stream().query()
    with pytest.raises(RuntimeError, match="boom"):
        event.synchronize()


def test_backward_survives_a_failure() -> None:
    w = torch.ones(4, device="neuron", requires_grad=True)
    (w * 2).sum().backward()
    torch.neuron.synchronize()
    w.grad = None
    with fault("execute", "in the middle of it", after=1):
        loss = (w * 2).sum()
        loss.backward()
    with pytest.raises(RuntimeError, match="in the middle of it"):
        torch.neuron.synchronize()
    w.grad = None
    (w * 2).sum().backward()
    assert_same(w.grad, torch.full((4,), 2.0))


def test_blocking_launches_raise_at_the_call() -> None:
    text = output_of(
        """
        import torch
        from torch_neuronx import _C
        x = torch.ones(3, device="neuron")
        (x + 1).cpu()
        for call in ("execute", "complete"):
            _C.inject_fault(call, "boom")
            try:
                x + 1
                print("not raised")
            except RuntimeError as error:
                print("raised", error)
        print((x + 1).tolist())
        """,
        NEURON_LAUNCH_BLOCKING="1",
    )
    assert len(re.findall(r"raised boom \(aten::add.*float32\[3\].*<string>:\d+\)", text)) == 2
    assert "not raised" not in text and "[2.0, 2.0, 2.0]" in text


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault for 'explode'"):
        _C.inject_fault("explode", "")
