"""Streams and events, with torch.cuda's names (decision D11).

A stream is an ordered queue of launches. All streams of a device share its one hardware queue: work
of one stream keeps its order, and work of another comes after it where an event says so, or where
both use the same storage. There is no ``ExternalStream``: PJRT takes none from outside.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.neuron.device import DeviceLike, _checked, current_device, index_of, set_device


class Stream(torch.Stream):
    """A stream of a neuron device.

    Args:
        device: the device; None is the current one.
        priority: lower goes first when several streams could go on. Values beyond
            ``priority_range()`` mean its nearest end, as on CUDA; so do those of ``torch.Stream``.

    Streams come from a pool of 32 a priority, each in turn, so two of them may be equal.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:  # stream_id=, device_index=, device_type=: one that exists
            return super().__new__(cls, **kwargs)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(
                f"the priority of a stream must be an integer, got {type(priority).__name__}"
            )
        low, high = cls.priority_range()
        on = torch.device("neuron", index_of(device))
        return super().__new__(cls, on, priority=min(max(priority, high), low))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority: (0, -1)."""
        return _C.stream_priority_range()

    @property
    def priority(self) -> int:
        """The stream's priority."""
        return _C.stream_priority(self.device_index, self.stream_id)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record ``event``, or a new one, after the work of this stream; returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


class _EventType(type):
    """Makes every event of the device an instance of ``torch.neuron.Event``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "neuron"


class Event(torch.Event, metaclass=_EventType):
    """An event of a neuron device: complete when the work before it on its stream is.

    Args:
        enable_timing: whether ``elapsed_time`` may be asked of it. The time is that at which the
            device was done with the work, whenever the host looks.
        blocking: for torch.cuda's sake; waiting never spins.
        interprocess: must be False.

    What is created is a plain ``torch.Event``: its ``elapsed_time`` takes no subclass.

    Raises:
        NotImplementedError: ``interprocess``, since PJRT events belong to one process.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError(
                "neuron events cannot be shared between processes (PJRT events belong to one); "
                "create it with interprocess=False"
            )
        return torch.Event("neuron", enable_timing=enable_timing, blocking=blocking)


def _as_ours(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def current_stream(device: DeviceLike = None) -> Stream:
    """This thread's current stream of a device."""
    return _as_ours(torch.accelerator.current_stream(_checked(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """The default stream of a device."""
    index = _checked(device)
    device_type = torch.accelerator.current_stream(index).device_type
    return Stream(stream_id=0, device_index=index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, current for this thread; None changes nothing.

    Raises:
        ValueError: the stream is of another device type.
    """
    if stream is None:
        return
    index_of(stream.device)
    torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream current, and its device; None changes nothing.

    The device's stream and the current device from before come back at the end.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: Stream | None = None
        self._device = -1

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._device = current_device()
            self._before = current_stream(self.stream.device)
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            set_stream(self._before)
            set_device(self._device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.neuron.stream(s):`` makes ``s`` current."""
    return StreamContext(stream)
