"""What every device can be asked. A capability that a backend lacks answers None: not known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class CompileEvent:
    """An executable that was made or loaded. ``tier`` is "compiled" or the cache that had it.

    ``number`` counts those of the process, also where only the newest are kept.
    """

    number: int
    name: str
    tier: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class HostOperator:
    """An overload that the backend ran on the host: how often, with which shapes, from where."""

    overload: str
    count: int | None  # None: the backend tells that it happened and not how often
    line: str = ""
    shapes: str = ""


class Adapter:
    """A device. Subclasses fill in what their backend can tell; PyTorch is imported when asked."""

    #: False where an operator without a device kernel raises, so that nothing can fall back.
    may_fall_back: bool = True
    #: backend name for torch.compile, None where compiling is not supported.
    compile_backend: str | None = "inductor"

    def __init__(self, device: str) -> None:
        self.device = device

    @property
    def kind(self) -> str:
        return self.device.split(":")[0]

    def absent(self) -> str | None:
        """Why the device cannot be used here, or None if it can."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits for everything that was submitted."""

    def identity(self) -> dict[str, Any]:
        """Backend package, lineage, compiler, runtime, plugin, driver: what is known of each."""
        raise NotImplementedError

    def stands_in(self) -> str:
        """Where programs really run, if that is not the device that they are for: then times and
        memory are not the device's. "" for a device that is what it says."""
        return ""

    def host_computes(self) -> bool:
        """Whether this process does the device's work, so that its processor time counts it."""
        return self.kind == "cpu"

    def route(self) -> tuple[bool | None, str]:
        """Whether this is a supported installation route (None: not known), and why."""
        return None, "this adapter has no table of supported installations"

    def host_operators(self) -> list[HostOperator] | None:
        """Overloads that ran on the host since ``clear_tracking``."""
        return None

    def device_operators(self) -> set[str] | None:
        """Overloads that ran on the device since ``clear_tracking``."""
        return None

    def clear_tracking(self) -> None:
        """Forgets which operators ran."""

    def supports(self, overload: str) -> bool | None:
        """Whether the backend documents a device kernel for ``aten::name.overload``."""
        return None

    def compile_events(self) -> list[CompileEvent] | None:
        """Executables of this process, oldest first."""
        return None

    def cache_environment(self, folder: Path) -> dict[str, str] | None:
        """Variables that put the backend's persistent cache into ``folder``, for a cold start."""
        return None

    def memory(self) -> dict[str, int] | None:
        """``allocated`` and ``peak`` bytes of the device, and ``capacity`` where known."""
        return None

    def reset_peak_memory(self) -> None:
        """Begins a new peak."""

    def memory_note(self) -> str:
        """What the memory figures are: the device's, or a model's."""
        return ""
