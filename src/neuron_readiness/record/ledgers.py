"""The Parquet ledgers: operators, shapes, timings, layers, inputs, outputs, inventory,
reached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def write(out: Path, results: dict[str, dict[str, Any]]) -> list[str]:
    """Writes each ledger that a stage filled to ``out/ledgers/NAME.parquet``, removes others;
    their names."""
    import pyarrow
    import pyarrow.parquet

    folder = out / "ledgers"
    folder.mkdir(exist_ok=True)
    written = []
    for result in results.values():
        for name, rows in result.get("ledgers", {}).items():
            if not rows:
                continue
            table = pyarrow.Table.from_pylist([_flat(row) for row in rows])
            part = folder / f".{name}.parquet"
            try:
                pyarrow.parquet.write_table(table, part)
                os.replace(part, folder / f"{name}.parquet")
            finally:
                part.unlink(missing_ok=True)
            written.append(name)
    for path in folder.glob("*.parquet"):  # of an earlier run, whose results do not count any more
        if path.stem not in written:
            path.unlink()
    return written


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Nested values as text: one column holds one type. A number that is not finite is stored in
    JSON by its name and is a number again here."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, (list, dict)):
            flat[key] = str(value)
        elif value in ("nan", "inf", "-inf"):
            flat[key] = float(value)
        else:
            flat[key] = float(value) if isinstance(value, int) and key in _FLOATS else value
    return flat


_FLOATS = {"max_abs", "max_rel", "worst", "seconds", "frequency", "zeros"}
