"""``neuron-readiness compare A B``: what changed from one record to another."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits
from neuron_readiness.record.compare import compare, render
from neuron_readiness.record.read import NewerSchema, RecordError, read

NEEDS = ("jsonschema",)


def add(commands: Any) -> None:
    p = commands.add_parser("compare", help="two records side by side, and what changed")
    p.add_argument("a", type=Path, help="record.json or its folder")
    p.add_argument("b", type=Path)
    p.add_argument("--json", action="store_true")


def main(options: argparse.Namespace) -> int:
    """0 if both reach one verdict, 1 if not."""
    try:
        a, b = read(options.a), read(options.b)
    except NewerSchema as error:
        print(error, file=sys.stderr)
        return exits.FAULTS["newer-schema"]
    except RecordError as error:
        print(error, file=sys.stderr)
        return exits.USAGE
    result = compare(a, b)
    print(json.dumps(result, indent=1) if options.json else render(result))
    return int(a["decision"]["verdict"] != b["decision"]["verdict"])
