"""``neuron-readiness report RECORD``: writes the reports again, or judges with other gates."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits
from neuron_readiness.gates import table
from neuron_readiness.gates.decide import decide
from neuron_readiness.record.assemble import claimed, has_run
from neuron_readiness.record.read import NewerSchema, RecordError, read
from neuron_readiness.report import render
from neuron_readiness.run import store

NEEDS = ("jinja2", "jsonschema")


def add(commands: Any) -> None:
    p = commands.add_parser("report", help="write a record's reports again, with other gates")
    p.add_argument("record", type=Path, help="record.json or its folder")
    p.add_argument("--gates", type=Path, help="a TOML of gates; the record keeps the new decision")


def main(options: argparse.Namespace) -> int:
    path = options.record if options.record.is_dir() else options.record.parent
    try:
        record = read(options.record)
        if options.gates:
            about = claimed(record["name"], record["options"], record["items"], record["pilot"])
            gates = table.changed(table.load(options.gates), record["pilot"].get("gates") or {})
            known = {**record["items"], "pilot": {"status": "done", "facts": record["pilot"]}}
            ran = has_run(record["items"])
            record["decision"] = decide(gates, known, record["faults"], *about, ran=ran)
            kinds = [f["kind"] for f in record["faults"]]
            record["exit_code"] = exits.exit_code(record["decision"]["verdict"], kinds)
            store.write(path / "record.json" if path == options.record else options.record, record)
    except NewerSchema as error:
        print(error, file=sys.stderr)
        return exits.FAULTS["newer-schema"]
    except (RecordError, table.GateError) as error:
        print(error, file=sys.stderr)
        return exits.USAGE
    store.write(path / "report.md", render.markdown(record))
    store.write(path / "report.html", render.html(record))
    print(f"{record['decision']['title']}: {path}/report.html")
    return int(record["exit_code"])
