"""``neuron-readiness sweep``: every architecture of a library, reduced, on a device."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits
from neuron_readiness.run.progress import Progress
from neuron_readiness.sweep.sources import NAMES

NEEDS = ("torch", "jinja2", "pyarrow", "tqdm")


def add(commands: Any) -> None:
    p = commands.add_parser("sweep", help="try every architecture of a library, reduced")
    p.add_argument("--source", action="append", choices=NAMES, help="may be repeated")
    p.add_argument("--device", default="neuron")
    p.add_argument("--out", type=Path, help="folder (readiness/sweep-DEVICE); goes on where it was")
    p.add_argument(
        "--start", type=Path, metavar="PARQUET", help="of an earlier sweep: its rows count as run"
    )
    p.add_argument("--sample", type=int, metavar="N", help="a stratified sample instead of all")
    p.add_argument("--name", action="append", default=[], help="only this architecture")
    p.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    p.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="of processor time, each"
    )
    p.add_argument("--downloads", type=Path, help="JSON of architecture: downloads, as weights")
    p.add_argument(
        "--retry",
        action="store_true",
        help="again what timed out, crashed, did not load or lacks its messages",
    )
    p.add_argument("--ray", action="store_true", help="workers are actors of a Ray cluster")
    p.add_argument("--quiet", action="store_true")


def main(options: argparse.Namespace) -> int:
    """0 when every chosen architecture has a row, whatever the rows say."""
    from neuron_readiness.adapters import adapter_for
    from neuron_readiness.sweep import choose, cluster, pool, report, revision, table
    from neuron_readiness.sweep.results import Rows

    out = (options.out or Path("readiness") / f"sweep-{options.device}").resolve()
    why = adapter_for(options.device).absent()
    if why is not None:
        print(f"device {options.device!r} is absent: {why}", file=sys.stderr)
        return exits.FAULTS["device-absent"]
    try:
        weights = json.loads(options.downloads.read_text()) if options.downloads else {}
    except (OSError, ValueError) as error:
        print(f"--downloads: {error}", file=sys.stderr)
        return exits.USAGE
    try:
        given = table.read(options.start)[0] if options.start else []
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
        print(f"--start: {error}", file=sys.stderr)
        return exits.USAGE
    tasks, missing = choose.tasks_of(options.source or ["transformers"])
    for source, reason in missing.items():
        print(f"{source}: {reason}", file=sys.stderr)
    if options.name:
        unknown = choose.unknown(options.name, tasks)
        if unknown:
            print(unknown, file=sys.stderr)
            return exits.USAGE
        tasks = [t for t in tasks if t[1] in options.name]
    # Stratified even where all are asked, so that what has run by any time is a sample.
    tasks = choose.stratified(tasks, options.sample or len(tasks))
    if not tasks:
        print("no architecture to try", file=sys.stderr)
        return exits.USAGE
    rows = Rows(out, options.device, given, {"revision": revision.of_sources()})
    left = [t for t in tasks if _is_left(rows.rows.get((t[0], t[1])), options.retry)]
    runner = cluster.run if options.ray else pool.run
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # workers end with the command
    with Progress(len(left), quiet=options.quiet) as bar:

        def done(row: dict[str, Any]) -> None:
            rows.add(row)
            bar.end(row["name"], _word(row))

        try:
            runner(left, options.device, options.workers, options.timeout, done)
        except cluster.NoRay as error:
            print(error, file=sys.stderr)
            return exits.USAGE
        except KeyboardInterrupt:
            interrupted = True
    chosen = [rows.rows[t[0], t[1]] for t in tasks if (t[0], t[1]) in rows.rows]
    limits = {"timeout_s": options.timeout, "missing_sources": missing, "asked": len(tasks)}
    result = report.build(chosen, options.device, weights, **limits)
    report.write(out, chosen, result)
    print(report.markdown(result).split("What to fix first")[0])
    print(f"{out}/sweep.html")
    return exits.INTERRUPTED if interrupted else exits.PROCEED


def _is_left(row: dict[str, Any] | None, retry: bool) -> bool:
    if row is None or not retry:
        return row is None
    whole = row.get("outcome") == "done" and not row.get("without_messages")
    return not (whole and row.get("loads"))


def _word(row: dict[str, Any]) -> str:
    """The row in a few words, for the progress."""
    if row.get("outcome") != "done":
        return str(row.get("outcome"))
    passed = [c for c in ("loads", "forward", "backward", "compiles", "on_device") if row.get(c)]
    return f"{' '.join(passed) or 'does not load'} ({row.get('seconds', 0):.1f} s)"
