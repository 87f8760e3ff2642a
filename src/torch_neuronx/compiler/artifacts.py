"""Compilation artefacts, kept on request for a person to look at.

Under TORCH_NEURONX_DEBUG_DIR, with TorchNeuron's folders and file stems
``<folder>/proc_<rank>/<name>_<timestamp>``:

- ``fx_graphs``: ``.fx.txt``, the FX graph with shapes;
- ``raw``: ``.program.json``, what the lowering server is given;
- ``stablehlo``: ``.stablehlo.mlirbc``, the portable artifact (bytecode: jaxlib reads it);
- ``neff``: ``.pjrt``, the executable as the plugin serializes it (it is no NEFF), ``.options.pb``,
  its CompileOptionsProto, and ``.json``, key, name and times.

What the cache on the disk has is lowered again for them, once, and not compiled.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from typing import Any

from torch_neuronx import config

_log = logging.getLogger(__name__)
_failed = threading.Event()


def enabled() -> bool:
    """Whether artefacts are kept (TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS)."""
    return bool(config.get("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS"))


def stem(name: str) -> str:
    """A file stem of a graph's or operator's name: with a timestamp in nanoseconds."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:100]}_{time.time_ns()}"


def write(folder: str, file_name: str, data: bytes) -> None:
    """Write one artefact. A disk that does not take it changes nothing else; that is said once."""
    rank = os.environ.get("RANK", "0")
    directory = os.path.join(config.get("TORCH_NEURONX_DEBUG_DIR"), folder, f"proc_{rank}")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with open(os.path.join(directory, file_name), "wb") as file:
            file.write(data)
    except OSError as error:
        say = _log.info if _failed.is_set() else _log.warning
        _failed.set()
        say("compilation artefacts were not kept (TORCH_NEURONX_DEBUG_DIR): %s", error)


def preserve(
    name: str,
    program_text: str | None,
    module: bytes,
    options: bytes,
    executable: bytes | None,
    meta: Any,
) -> None:
    """Write what was compiled, if the options ask for it; ``None`` is what there is not."""
    if not enabled():
        return
    start = stem(name)
    if program_text is not None:
        write("raw", f"{start}.program.json", program_text.encode())
    write("stablehlo", f"{start}.stablehlo.mlirbc", module)
    if executable is not None:
        write("neff", f"{start}.pjrt", executable)
    write("neff", f"{start}.options.pb", options)
    write("neff", f"{start}.json", json.dumps(meta, indent=1).encode())


def preserve_graph(name: str, text: str) -> None:
    """Write an FX graph's text, if the options ask for it."""
    if enabled():
        write("fx_graphs", f"{stem(name)}.fx.txt", text.encode())
