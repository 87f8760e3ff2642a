"""Writes docs/sweep.md from docs/sweep.parquet, the rows of every sweep that counts.

    python tools/generate_sweep.py
    python tools/generate_sweep.py --add readiness/sweep-neuron/rows.jsonl --note "Ran on ..."

--add takes the rows of a sweep (rows.jsonl, or sweep.parquet) into the table, in place of the
architectures' earlier rows; --note replaces what the page says of how they came about. The page
lists only what docs/sweep.parquet holds, so that nothing on it is without its row.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from neuron_readiness.sweep import table
from neuron_readiness.sweep.report import document

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(arguments: list[str], docs: Path = DOCS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--add", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--note")
    options = parser.parse_args(arguments)
    parquet = docs / "sweep.parquet"
    rows, note = table.read(parquet) if parquet.exists() else ([], "")
    if options.add or options.note is not None:
        kept = {(row["source"], row["name"]): row for row in rows}
        for path in options.add:
            kept |= {(row["source"], row["name"]): row for row in _rows(path)}
        table.write(parquet, list(kept.values()), note if options.note is None else options.note)
    (docs / "sweep.md").write_text(document(parquet))
    return 0


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file; of an architecture that ran twice, the later."""
    if path.suffix == ".parquet":
        return table.read(path)[0]
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
