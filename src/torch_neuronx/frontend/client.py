"""The door to Torch-MLIR's process: parts of a program in, StableHLO out.

Torch-MLIR aborts on some graphs instead of raising; so it runs in a process of its own, started at
the first such program and gone after idling, like the lowering server. Imports neither torch nor
jax.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from torch_neuronx.frontend import parts
from torch_neuronx.frontend.parts import Part
from torch_neuronx.lowering import client
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.client import LoweredReply, LoweringClient, ServerGone
from torch_neuronx.lowering.errors import LoweringError
from torch_neuronx.lowering.program import AnyProgram

_lock = threading.Lock()
_client: LoweringClient | None = None

_HELP = "Without options={'frontend': 'torch-mlir'} our own rules lower it"


def lower(
    program: AnyProgram, platform: str, version: str, handlers: Sequence[str] = ()
) -> LoweredReply:
    """``lowering.client.lower``, with the parts of another front end lowered there first.

    Raises:
        LoweringError: names the node that cannot be lowered by its number ("node 3").
    """
    if isinstance(program, ir.Text) and ir.FOREIGN in program.text:
        program = ir.Program.from_json(program.text)
    seconds = 0.0
    if isinstance(program, ir.Program) and any(n.op == ir.FOREIGN for n in program.nodes):
        nodes = []
        for node in program.nodes:
            if node.op == ir.FOREIGN:
                text, spent = translate(parts.of(program, node))
                seconds += spent
                node = parts.filled(node, text)
            nodes.append(node)
        program = dataclasses.replace(program, nodes=tuple(nodes))
    reply = client.lower(program, platform, version, handlers)
    return dataclasses.replace(reply, seconds=reply.seconds + seconds)


def translate(part: Part) -> tuple[str, float]:
    """The text of a part's module, and the seconds that it took.

    Raises:
        LoweringError: as ``lower``.
    """
    try:
        header, module = _ask(part)
    except ServerGone as gone:
        raise LoweringError(_name_what_aborts(part, gone)) from gone
    if not header["ok"]:
        raise LoweringError(f"Torch-MLIR cannot lower {header['text']}. {_HELP}")
    return module.decode(), float(header["seconds"])


def _ask(part: Part) -> tuple[dict[str, Any], bytes]:
    request = part.to_json().encode()
    try:
        return default_client().ask(request, attempts=1)
    except ServerGone as gone:
        if gone.status != 0:
            raise
        return default_client().ask(request, attempts=1)  # the first had just gone, after idling


def default_client() -> LoweringClient:
    """The process's client: at most one process of Torch-MLIR, which takes about 0.4 GB."""
    global _client
    with _lock:
        if _client is None:
            _client = LoweringClient(servers=1, module="torch_neuronx.frontend.server")
        return _client


def _name_what_aborts(part: Part, gone: ServerGone) -> str:
    """Lower the nodes one by one, in processes that may die, until one does."""
    text = f"Torch-MLIR's process ended with status {gone.status}"
    for i, node in enumerate(part.function.nodes):
        try:
            _ask(part.alone(i))
        except ServerGone:
            return f"{text} on {node.op} (node {part.numbers[i]}). {_HELP}"
    return f"{text} on this graph, and on none of its operators alone. {_HELP}"
