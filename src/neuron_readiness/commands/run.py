"""``neuron-readiness run PILOT``: all stages, or some of them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits
from neuron_readiness.gates import table
from neuron_readiness.record.read import NewerSchema
from neuron_readiness.run.pilot_run import Request, run
from neuron_readiness.run.supervisor import Limits, available_bytes
from neuron_readiness.stages import BY_NAME

NEEDS = ("torch", "jinja2", "jsonschema", "pyarrow", "tqdm")


def add(commands: Any) -> None:
    p = commands.add_parser("run", help="run a pilot and write a record")
    p.add_argument("pilot", type=Path, help="the pilot, a Python file")
    p.add_argument("--device", default="neuron", help="the device to judge (%(default)s)")
    p.add_argument("--reference", default="cpu", help="what it is compared with (%(default)s)")
    p.add_argument("--out", type=Path, help="folder of the record (readiness/PILOT-DEVICE)")
    p.add_argument(
        "--only", action="append", default=[], metavar="STAGE",
        help=f"run this stage only; may be repeated: {', '.join(BY_NAME)}",
    )  # fmt: skip
    p.add_argument("--again", action="append", default=[], metavar="STAGE", help="run a stage "
                   "again although a valid result is stored; `all` for every stage")  # fmt: skip
    p.add_argument("--gates", type=Path, help="a TOML of gates instead of the default one")
    p.add_argument("--repeats", type=int, default=30, help="steady requests (%(default)s)")
    p.add_argument("--train-steps", type=int, default=8, help="steps of a training job")
    p.add_argument("--stage-timeout", type=float, default=900.0, metavar="SECONDS")
    p.add_argument("--memory-limit", type=float, metavar="GIB", help="of the pilot's process "
                   "(default: 80%% of what is free at the start)")  # fmt: skip
    p.add_argument("--allow-network", action="store_true", help="let the pilot use the network")
    p.add_argument("--quiet", action="store_true", help="no progress, only the decision")


def main(options: argparse.Namespace) -> int:
    unknown = [n for n in options.only if n not in BY_NAME]
    if unknown:
        print(f"--only: expected some of {', '.join(BY_NAME)}, got {unknown}", file=sys.stderr)
        return exits.USAGE
    if not options.pilot.is_file():
        print(f"{options.pilot} is not a file; expected a pilot", file=sys.stderr)
        return exits.USAGE
    try:
        table.load(options.gates)
    except table.GateError as error:  # before anything has taken time
        print(f"gates: {error}", file=sys.stderr)
        return exits.USAGE
    device = options.device.replace(":", "")
    out = options.out or Path("readiness") / f"{options.pilot.stem}-{device}"
    free = available_bytes()
    limit = int(options.memory_limit * 2**30) if options.memory_limit else free and int(free * 0.8)
    request = Request(
        pilot=options.pilot.resolve(),
        out=out.resolve(),
        options={
            "device": options.device,
            "reference": options.reference,
            "repeats": options.repeats,
            "train_steps": options.train_steps,
            "child_timeout_s": options.stage_timeout,
            "allow_network": options.allow_network,
        },
        only=options.only,
        force=list(BY_NAME) if "all" in options.again else options.again,
        gates=options.gates,
        limits=Limits(options.stage_timeout, limit),
        quiet=options.quiet,
    )
    # A job that is cancelled ends as one that is interrupted: with its record.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        record = run(request)
    except NewerSchema as error:
        print(error, file=sys.stderr)
        return exits.FAULTS["newer-schema"]
    except table.GateError as error:
        print(f"gates: {error}", file=sys.stderr)
        return exits.USAGE
    decision = record["decision"]
    print(f"{decision['title']}\n{decision['claim']}")
    for reason in decision["reasons"][:8]:
        print(f"  {reason['kind']}: {reason['text']}")
    if record["drift"] and record["drift"][0]["name"] == "stored results":
        changed = ", ".join(r["name"] for r in record["drift"][1:5]) or "an older format"
        print(f"  dropped: earlier results of {record['drift'][0]['before']} (changed: {changed})")
    # A full disk leaves fewer of them.
    written = [f for f in ("record.json", "report.html", "report.md") if (out / f).exists()]
    print("   ".join(f"{out}/{f}" for f in written[:2]) or "nothing could be written")
    return int(record["exit_code"])
