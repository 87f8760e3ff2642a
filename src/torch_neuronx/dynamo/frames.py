"""Frames that Dynamo stopped compiling: from its recompile limit on they run in Python.

Dynamo says so in a warning and nowhere else, so a handler listens to its logger. Where that logger
is silenced (``TORCH_LOGS="-dynamo"``) nothing is recorded.
"""

from __future__ import annotations

import logging

from torch_neuronx.compiler import ledger

_LIMIT = "torch._dynamo hit config"


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args
        if not str(record.msg).startswith(_LIMIT) or not isinstance(arguments, tuple):
            return
        limit, count, function, reason = (str(a) for a in arguments[:4])
        ledger.add_eager_frame(ledger.EagerFrame(function, f"{limit} ({count})", reason))


def watch() -> None:
    """Record frames from now on. Idempotent."""
    logger = logging.getLogger("torch._dynamo.convert_frame")
    if not any(isinstance(h, _Listener) for h in logger.handlers):
        logger.addHandler(_Listener(logging.WARNING))
