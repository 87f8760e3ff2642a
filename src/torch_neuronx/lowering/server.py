"""The lowering server: programs in, StableHLO out, over two pipes.

``python -m torch_neuronx.lowering.server [--idle-s SECONDS]`` reads requests from its standard
input and writes replies to what was its standard output. Both are frames: a length (8 bytes, big
endian) and that many bytes. A request is JSON; a reply is a JSON header's length (4 bytes), the
header, and the bytes of the module. It ends when its input closes, because its owner is gone, and
when no request came for a while.

Request: {"program": text of Program.to_json, "platform": "cpu", "version": "1.9.3", "handlers":
[names]}; or
{"ping": true}, answered with the names of the modules that were imported.

Started with ``python -m``, the package's ``__init__`` runs and imports torch; the client starts it
without (see ``client._BOOTSTRAP``). Nothing here needs torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

# Each program leaves about 16 kB in jax's caches.
_CLEAR_EVERY = 500

FRAME = struct.Struct(">Q")
HEADER = struct.Struct(">I")


def _read_exactly(fd: int, size: int) -> bytes | None:
    """``size`` bytes, or None when the pipe ends before them."""
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _lower(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    from torch_neuronx.lowering.build import lower
    from torch_neuronx.lowering.program import from_json

    program = from_json(request["program"])
    lowered = lower(
        program,
        platform=request["platform"],
        version=request["version"],
        available=request.get("handlers", ()),
    )
    header = {
        "ok": True,
        "kept": list(lowered.kept),
        "results": [[r.dtype, list(r.shape)] for r in lowered.results],
        "checks": [[c.exception, c.message] for c in lowered.checks],
        "rng_increment": lowered.rng_increment,
        "aliases": [[k, v] for k, v in lowered.aliases.items()],
        "bytes_accessed": lowered.bytes_accessed,
        "handlers": list(lowered.handlers),
    }
    return header, lowered.module


def answer(frame: bytes, lower: Callable[..., Any] = _lower) -> bytes:
    """The reply to one request. Every exception becomes a reply: the server outlives it."""
    from torch_neuronx.lowering.errors import LoweringError

    start = time.perf_counter()
    module = b""
    try:
        request = json.loads(frame)
        if "ping" in request:
            header: dict[str, Any] = {"ok": True, "modules": sorted(sys.modules)}
        else:
            header, module = lower(request)
    except LoweringError as error:
        header = {"ok": False, "kind": type(error).__name__, "text": str(error)}
    except Exception as error:
        header = {"ok": False, "kind": "internal", "text": f"{type(error).__name__}: {error}"}
    header["seconds"] = time.perf_counter() - start
    head = json.dumps(header, separators=(",", ":")).encode()
    return HEADER.pack(len(head)) + head + module


def serve(
    source: int,
    sink: int,
    idle_s: float,
    reply_to: Callable[[bytes], bytes],
    clear: Callable[[], None],
) -> None:
    """Answer requests from file descriptor ``source`` until it ends or idles."""
    for served in itertools.count(1):
        readable, _, _ = select.select([source], [], [], idle_s)
        if not readable:
            return
        size = _read_exactly(source, FRAME.size)
        if size is None:
            return
        frame = _read_exactly(source, FRAME.unpack(size)[0])
        if frame is None:
            return
        reply = reply_to(frame)
        try:
            _write_all(sink, FRAME.pack(len(reply)) + reply)
        except BrokenPipeError:
            return
        if served % _CLEAR_EVERY == 0:
            clear()


def _clear() -> None:
    """Drop what jax remembers of programs that were lowered; ours hardly ever come twice."""
    import gc

    import jax

    jax.clear_caches()
    gc.collect()


def idle_seconds(argv: list[str] | None) -> float:
    """How long to wait for a request, from the command line or the options."""
    parser = argparse.ArgumentParser(prog="python -m torch_neuronx.lowering.server")
    parser.add_argument("--idle-s", type=float, help="exit after so many seconds without a request")
    args = parser.parse_args(argv)
    if args.idle_s is not None:
        return float(args.idle_s)
    from torch_neuronx import config

    return float(config.get("TORCH_NEURONX_LOWERING_IDLE_S"))


def own_pipes() -> tuple[int, int]:
    """Descriptors of our own, and 0 and 1 pointed elsewhere.

    Whatever a library reads or prints, it cannot touch the pipes.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return source, sink


def main(argv: list[str] | None = None) -> None:
    """Set up the process, then serve."""
    idle_s = idle_seconds(argv)
    source, sink = own_pipes()
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Loaded before the first request is read, so that a client can start a server early.
    from torch_neuronx.lowering import build, table

    table.load_rules()
    assert build is not None
    serve(source, sink, idle_s, answer, _clear)


if __name__ == "__main__":
    main()
    # Skips the destructors of jax's client, which hold up the exit for tens of milliseconds.
    sys.stderr.flush()
    os._exit(0)
