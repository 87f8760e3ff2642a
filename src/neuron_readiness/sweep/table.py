"""The rows of a sweep as a typed Parquet table, with a note on how they came about.

What was found for an architecture is worth hours of processor time, so that the table holds all of
it: a page can be written from it, and a sweep goes on from it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from neuron_readiness.sweep.results import COLUMNS

_TEXT = (
    *("source", "name", "family", "device", "outcome", "class_name", "recipe", "reduction"),
    *("revision", "when"),
)
_YES_OR_NO = (*COLUMNS, "trainable", "reference_captures", "without_messages")
_NUMBERS = (
    *("worst_in_tolerances", "reference_moves", "reference_gradients_move", "capture_moves"),
    *("seconds", "load"),
)
_COUNTS = ("parameters", "graph_breaks")
_EMPTY: dict[str, Any] = {"host_operators": [], "break_reasons": [], "errors": {}}  # as JSON
_NOTE = b"note"


def write(path: Path, rows: list[dict[str, Any]], note: str = "") -> None:
    """One row an architecture, sorted by source and name; what a row lacks is null."""
    import pyarrow
    import pyarrow.parquet

    types = {
        **dict.fromkeys(_TEXT, pyarrow.string()),
        **dict.fromkeys(_YES_OR_NO, pyarrow.bool_()),
        **dict.fromkeys(_NUMBERS, pyarrow.float64()),
        **dict.fromkeys(_COUNTS, pyarrow.int64()),
        **dict.fromkeys(_EMPTY, pyarrow.string()),
    }
    ordered = sorted(rows, key=lambda r: (r["source"], r["name"]))
    columns = {
        name: pyarrow.array([_cell(name, row.get(name)) for row in ordered], kind)
        for name, kind in types.items()
    }
    table = pyarrow.table(columns).replace_schema_metadata({_NOTE: note.encode()})
    part = path.with_name(f".{path.name}")
    pyarrow.parquet.write_table(table, part, compression="zstd")
    os.replace(part, path)


def read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Rows and note.

    Raises:
        OSError or pyarrow.ArrowInvalid: no such file, or no Parquet.
    """
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        for name, empty in _EMPTY.items():
            row[name] = json.loads(row[name]) if row.get(name) else empty
    return rows, ((table.schema.metadata or {}).get(_NOTE) or b"").decode()


def _cell(name: str, value: Any) -> Any:
    if name in _EMPTY:
        return json.dumps(value) if value else None
    if name in _NUMBERS and value is not None:
        return float(value)  # JSON has infinity as a word
    if name in _COUNTS and value is not None:
        return int(value)
    return value
