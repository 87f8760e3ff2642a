"""``neuron-readiness init``: writes a pilot to start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from neuron_readiness import exits

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
            text = hugging_face(options.hf, options.weights)
        except ValueError as error:
            print(error, file=sys.stderr)
            return exits.USAGE
    else:
        text = (_TEMPLATES / "plain.py.txt").read_text(encoding="utf-8")
    options.path.write_text(text, encoding="utf-8")
    print(f"wrote {options.path}; next: neuron-readiness run {options.path} --device neuron")
    return 0


def hugging_face(name: str, weights: str | None) -> str:
    """The text of a pilot for a class of transformers, with inputs for what its forward takes.

    Raises:
        ValueError: transformers is missing, or has no such model class.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"--hf needs transformers: {error}") from None
    cls = getattr(transformers, name, None)
    if cls is None or not hasattr(cls, "config_class"):
        raise ValueError(f"transformers {transformers.__version__} has no model class {name!r}")
    main_input = getattr(cls, "main_input_name", "input_ids")
    kind = {"pixel_values": "pixels", "input_values": "audio"}.get(main_input, "text")
    text = (_TEMPLATES / f"hf_{kind}.py.txt").read_text(encoding="utf-8")
    build = (
        f"{name}.from_pretrained({weights!r})"
        if weights
        else f"{name}({cls.config_class.__name__}())"
    )
    imports = name if weights else f"{cls.config_class.__name__}, {name}"
    return text.replace("@IMPORTS@", imports).replace("@BUILD@", build).replace("@NAME@", name)
