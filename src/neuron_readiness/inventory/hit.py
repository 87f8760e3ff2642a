"""One dependency found in the workload's source."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Hit:
    """``supported``: True, False, or None where it has to be tried on the target."""

    file: str
    line: int
    kind: str
    text: str
    assumes: str
    supported: bool | None
    suggestion: str
