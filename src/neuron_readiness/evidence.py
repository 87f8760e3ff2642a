"""What a stage hands back: facts, sentences that say how they are known, findings and faults.

JSON-ready throughout, because a stage runs in another process than the one that writes the record.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

Evidence = Literal["measured", "documented", "open"]
Severity = Literal["gap", "note"]
Side = Literal["workload", "infrastructure", "unknown"]


@dataclasses.dataclass
class Statement:
    """One sentence of the record. ``source``: how it was measured, where it is documented, or what
    it would take to close it."""

    text: str
    evidence: Evidence
    source: str = ""


@dataclasses.dataclass
class Finding:
    """Something to act on. ``where`` is ``file:line`` or the name of a case; ``gate`` the gate that
    it is a cause of."""

    text: str
    severity: Severity = "note"
    where: str = ""
    suggestion: str = ""
    gate: str = ""


@dataclasses.dataclass
class Fault:
    """The tool could not do its work as asked. ``kind`` is a key of ``exits.FAULTS``; ``side``
    tells a defect of the workload from one of the infrastructure."""

    kind: str
    text: str
    side: Side = "unknown"
    trace: str = ""


@dataclasses.dataclass
class StageResult:
    """One recorded item. ``facts`` is what gates read; ``ledgers`` become Parquet tables."""

    stage: str
    title: str
    status: str = "done"  # done | failed | skipped
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    statements: list[Statement] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    faults: list[Fault] = dataclasses.field(default_factory=list)
    ledgers: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def measured(self, text: str, source: str = "") -> None:
        self.statements.append(Statement(text, "measured", source))

    def documented(self, text: str, source: str) -> None:
        self.statements.append(Statement(text, "documented", source))

    def open(self, text: str, source: str = "") -> None:
        self.statements.append(Statement(text, "open", source))

    @property
    def evidence(self) -> Evidence:
        """The strongest kind among the statements; ``open`` if there is none."""
        kinds = {s.evidence for s in self.statements}
        for kind in ("measured", "documented"):
            if kind in kinds:
                return kind
        return "open"

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        data["evidence"] = self.evidence
        return jsonable(data)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StageResult:
        data = {k: v for k, v in data.items() if k in {f.name for f in dataclasses.fields(cls)}}
        data["statements"] = [Statement(**s) for s in data.get("statements", [])]
        data["findings"] = [Finding(**f) for f in data.get("findings", [])]
        data["faults"] = [Fault(**f) for f in data.get("faults", [])]
        return cls(**data)


def jsonable(value: Any) -> Any:
    """``value`` with strict JSON's types: NaN and infinities become their names."""
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
