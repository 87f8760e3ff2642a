"""Writes docs/sweep.md from the Parquet table of a sweep: `generate_sweep.py SWEEP.PARQUET NOTE`.

NOTE says in a sentence how the sweep was run, for nothing in the table does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from neuron_readiness.sweep.report import document

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "sweep.md"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    DOCUMENT.write_text(document(Path(sys.argv[1]), sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
