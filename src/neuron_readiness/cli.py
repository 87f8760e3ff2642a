"""The command ``neuron-readiness``: init, run, compare, report, sweep."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from neuron_readiness import __version__, exits

# One module each, with `add(subparsers)`, `main(options) -> exit status`, and `NEEDS`: packages
# beside the standard library that it imports.
_COMMANDS = ("init", "run", "report", "compare", "sweep")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status (see ``exits``; 2 for wrong usage)."""
    parser = argparse.ArgumentParser(prog="neuron-readiness", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {n: importlib.import_module(f"neuron_readiness.commands.{n}") for n in _COMMANDS}
    for module in modules.values():
        module.add(commands)
    options = parser.parse_args(argv)
    missing = [n for n in modules[options.command].NEEDS if importlib.util.find_spec(n) is None]
    if missing:
        names = ", ".join(missing)
        print(
            f"{options.command} needs {names}, not installed for {sys.executable}: install PyTorch "
            "as its device asks for, and the rest with `pip install 'torchneuron[readiness]'`",
            file=sys.stderr,
        )
        return exits.USAGE
    return int(modules[options.command].main(options))


if __name__ == "__main__":
    sys.exit(main())
