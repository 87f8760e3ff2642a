"""Reading a table of gates, and the pilot's own changes to it."""

from __future__ import annotations

import dataclasses
import operator
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEVELS = ("require", "expect", "report", "off")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
DEFAULT = Path(__file__).with_name("default.toml")


class GateError(ValueError):
    """A table of gates is malformed; the message names gate and entry."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """One rule. See default.toml for the meaning of each entry."""

    name: str
    measure: str
    op: str
    limit: Any
    level: str
    claim: str
    when: str = ""
    open: str = "gap"

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise GateError(f"gate {self.name}: op {self.op!r}; expected one of {[*OPERATORS]}")
        if self.level not in LEVELS:
            raise GateError(f"gate {self.name}: level {self.level!r}; expected one of {LEVELS}")
        if self.open not in ("gap", "ignore"):
            raise GateError(f"gate {self.name}: open {self.open!r}; expected 'gap' or 'ignore'")


def load(path: Path | None = None) -> list[Gate]:
    """The gates of a file, by default this package's.

    Raises:
        GateError: the file is not TOML, or an entry is missing or unknown.
    """
    path = path or DEFAULT
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise GateError(f"{path}: {error}") from error
    if content.get("version") != 1:
        raise GateError(f"{path}: version is {content.get('version')}, expected 1")
    return [_gate(name, entries) for name, entries in content.get("gates", {}).items()]


def _gate(name: str, entries: dict[str, Any]) -> Gate:
    known = {f.name for f in dataclasses.fields(Gate)} - {"name"}
    unknown = sorted(set(entries) - known)
    missing = sorted({"measure", "op", "limit", "level", "claim"} - set(entries))
    if unknown or missing:
        raise GateError(f"gate {name}: unknown entries {unknown}, missing entries {missing}")
    return Gate(name=name, **entries)


def changed(gates: list[Gate], changes: dict[str, dict[str, Any]]) -> list[Gate]:
    """The gates with a pilot's `gates`: changed entries, or new gates given whole."""
    table = {g.name: g for g in gates}
    for name, entries in changes.items():
        if name in table:
            try:
                table[name] = dataclasses.replace(table[name], **entries)
            except TypeError as error:
                raise GateError(f"gate {name}: {error}") from error
        else:
            table[name] = _gate(name, entries)
    return list(table.values())
