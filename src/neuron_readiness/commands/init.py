"""``neuron-readiness init``: writes a pilot to start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits
from neuron_readiness.commands.hugging_face import pilot_text

NEEDS = ()
_TEMPLATES = Path(__file__).parent / "templates"


def add(commands: Any) -> None:
    p = commands.add_parser("init", help="write a pilot file to start from")
    p.add_argument("path", type=Path, nargs="?", default=Path("pilot.py"))
    p.add_argument("--hf", metavar="MODEL_CLASS", help="a class of transformers, such as "
                   "BertForSequenceClassification")  # fmt: skip
    p.add_argument("--weights", help="folder with the model's weights; random ones without it")
    p.add_argument("--force", action="store_true", help="overwrite an existing file")


def main(options: argparse.Namespace) -> int:
    if options.path.exists() and not options.force:
        print(f"{options.path} exists; --force overwrites it", file=sys.stderr)
        return exits.USAGE
    if options.hf:
        try:
            text = pilot_text(options.hf, options.weights, options.path.name)
        except ValueError as error:
            print(error, file=sys.stderr)
            return exits.USAGE
    else:
        text = (_TEMPLATES / "plain.py.txt").read_text(encoding="utf-8")
    options.path.write_text(text, encoding="utf-8")
    print(f"wrote {options.path}; next: neuron-readiness run {options.path} --device neuron")
    return 0
