"""Streams and events. A device has one stream here: the default one.

Work is launched in order, so events and waits between streams have nothing to add to that order.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.neuron.device import DeviceLike, index_of


class Stream(torch.Stream):
    """A stream of a neuron device."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        if kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, torch.device("neuron", index_of(device)), priority=priority)


class Event(torch.Event):
    """An event of a neuron device; it is complete when all earlier launches are."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> Event:
        return super().__new__(cls, "neuron", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: DeviceLike = None) -> Stream:
    """The current stream of a device."""
    return Stream(device)


def default_stream(device: DeviceLike = None) -> Stream:
    """The default stream of a device."""
    return Stream(device)


def set_stream(stream: torch.Stream) -> None:
    """Make a stream current. There is one a device, so only its device is checked."""
    index_of(stream.device)


class StreamContext:
    """Context manager that makes a stream current; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        return None


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.neuron.stream(s):`` makes ``s`` current."""
    return StreamContext(stream)
