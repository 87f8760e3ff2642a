"""Torch-MLIR's process: ``Part.to_json`` in, the text of a StableHLO module out.

Frames and replies are those of ``lowering.server``.
"""

from __future__ import annotations

import gc
import json
import os
import resource
from typing import Any

from torch_neuronx.lowering import server

_MEMORY = 8 << 30  # bytes; an idle process has addresses of 1 GiB


def _lower(part: Any) -> tuple[dict[str, Any], bytes]:
    from torch_neuronx.frontend import torch_mlir
    from torch_neuronx.frontend.parts import Part

    return {"ok": True}, torch_mlir.lower(Part.from_json(json.dumps(part))).encode()


def _limit_memory() -> None:
    """A lowering that goes wild must die alone, and before the machine is out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [n for n in (_MEMORY, soft, hard) if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))


def main() -> None:
    """Set up the process, then serve."""
    idle_s = server.idle_seconds(None)
    _limit_memory()
    source, sink = server.own_pipes()
    server.serve(source, sink, idle_s, lambda frame: server.answer(frame, _lower), gc.collect)


if __name__ == "__main__":
    main()
    os._exit(0)
