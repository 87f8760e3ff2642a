"""One dependency found in the workload's source."""

from __future__ import annotations

import dataclasses

ON_PATH, NOT_SEEN, UNKNOWN = "on the path", "not seen to run", "unknown"


@dataclasses.dataclass(frozen=True)
class Hit:
    """``supported``: True, False, or None where it has to be tried on the target. ``used``: where
    what this line holds is used, as ``file:line``. ``reach``: whether that ran. ``kernel``: the
    custom kernel that the line defines or uses, as far as it says which."""

    file: str
    line: int
    kind: str
    text: str
    assumes: str
    supported: bool | None
    suggestion: str
    used: tuple[str, ...] = ()
    reach: str = UNKNOWN
    kernel: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"
