"""A process that probes architectures one after another, named on its standard input."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from neuron_readiness.adapters import adapter_for
from neuron_readiness.evidence import jsonable
from neuron_readiness.run import guard, lifeline


def main(argv: list[str]) -> int:
    """``argv``: device, file descriptor for the answers. A JSON line in; out, the row so far when a
    column begins (``at``), and at last the whole row with ``outcome``."""
    lifeline.end_with_parent()
    device, fd = argv[0], int(argv[1])
    guard.install(allow_network=False)
    warnings.simplefilter("ignore")
    from neuron_readiness.sweep.probe import probe
    from neuron_readiness.sweep.sources import load, torchvision_shim

    def tell(row: dict[str, Any]) -> None:
        os.write(fd, (json.dumps(jsonable(row)) + "\n").encode())

    torchvision_shim.install()
    adapter = adapter_for(device)
    for line in sys.stdin:
        source, name, family = json.loads(line)
        why = load(source).available()
        if why is not None:
            row = {"source": source, "name": name, "family": family, "loads": False}
            row["errors"] = {"loads": why}
        else:
            row = probe(source, name, family, adapter, tell)
        tell({**row, "outcome": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
