"""Compilation artefacts, kept on request for a person to look at."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from torch_neuronx import config

_log = logging.getLogger(__name__)


def preserve(key: str, program_text: str | None, module: bytes, options: bytes, meta: Any) -> None:
    """Write what was compiled under TORCH_NEURONX_DEBUG_DIR, if the options ask for it.

    One directory per module: ``module.mlirbc`` (portable StableHLO), ``options.pb``
    (CompileOptionsProto), ``meta.json``, and ``program.json`` where a program was lowered. A disk
    that does not take them is logged and changes nothing else.
    """
    if not config.get("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS"):
        return
    directory = os.path.join(config.get("TORCH_NEURONX_DEBUG_DIR"), key[:32])
    files = {
        "module.mlirbc": module,
        "options.pb": options,
        "meta.json": json.dumps(meta, indent=1).encode(),
    }
    if program_text is not None:
        files["program.json"] = program_text.encode()
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for name, data in files.items():
            with open(os.path.join(directory, name), "wb") as file:
                file.write(data)
    except OSError as error:
        _log.warning("compilation artefacts were not kept: %s", error)
