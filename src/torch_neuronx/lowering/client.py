"""The door to the lowering server: ``lower(program, platform, version, handlers)``.

The server is started at the first call, once more if it died or went after idling, and belongs to
one process: a forked child closes what it inherited and starts its own. Imports neither torch nor
jax.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from torch_neuronx import config
from torch_neuronx.lowering import errors
from torch_neuronx.lowering.errors import LoweringError
from torch_neuronx.lowering.program import AnyProgram, Array, Text, from_json

_FRAME = struct.Struct(">Q")
_HEADER = struct.Struct(">I")

# What runs in the server before anything else. The package itself is replaced by an empty one, so
# that its __init__ (which may import torch) does not run there.
_BOOTSTRAP = """
import json, runpy, sys, types
package, path, arguments = json.loads(sys.argv[1])
sys.path.extend(p for p in path if p not in sys.path)
module = types.ModuleType("torch_neuronx")
module.__path__ = package
sys.modules["torch_neuronx"] = module
sys.argv = arguments
runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
"""


@dataclasses.dataclass(frozen=True)
class LoweredReply:
    """A lowered program, as ``build.Lowered``, and the seconds that lowering took.

    ``checks`` are pairs of a builtin exception's name, or LinAlgError, and a message in which
    {value} stands.
    """

    module: bytes
    kept: tuple[int, ...]
    results: tuple[Array, ...]
    checks: tuple[tuple[str, str], ...]
    rng_increment: int
    aliases: dict[int, int]
    seconds: float
    bytes_accessed: int = 0
    handlers: tuple[str, ...] = ()


@dataclasses.dataclass
class LoweringStats:
    """Counts of one client: servers started, requests answered, and seconds of lowering."""

    starts: int = 0
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0


class ServerGone(Exception):
    """The pipe ended: the server died (with ``status``) or went after idling."""

    status: int | None = None


class _Server:
    """One running server process and its two pipes. Used by one thread at a time."""

    def __init__(self, idle_s: float, module: str) -> None:
        if not sys.executable:
            raise LoweringError(
                "the lowering server needs a Python interpreter, but sys.executable is empty. "
                "Set TORCH_NEURONX_LOWERING=inprocess."
            )
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        path = [os.path.abspath(p) for p in sys.path if p]
        setup = json.dumps([[package], path, [module, "--idle-s", repr(idle_s)]])
        # The user's settings for jax and XLA are not meant for this process: they would change
        # what is lowered without changing the key, and an unknown XLA flag aborts the process.
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
        environ["JAX_PLATFORMS"] = "cpu"
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # for a front end, which imports torch
        try:
            self.process = subprocess.Popen(
                # Isolated: PYTHONINSPECT and the like, and a jax.py in the working directory,
                # must not matter. The paths of this process follow in the argument.
                [sys.executable, "-I", "-c", _BOOTSTRAP, setup],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environ,
                start_new_session=True,  # Ctrl-C is for the program, not for half a lowering
            )
        except OSError as error:
            raise LoweringError(f"the lowering server did not start: {error}") from error
        # Waits for the process wherever and whenever it ends, so that no zombie stays.
        threading.Thread(
            target=self.process.wait, name="torchneuron-lowering-reaper", daemon=True
        ).start()

    def alive(self) -> bool:
        return self.process.returncode is None and self.process.poll() is None

    def call(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """One request and its reply: header and module."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            out = self.process.stdin.fileno()
            view = memoryview(_FRAME.pack(len(request)) + request)
            while view:
                view = view[os.write(out, view) :]
            source = self.process.stdout.fileno()
            reply = _read_exactly(source, _FRAME.unpack(_read_exactly(source, _FRAME.size))[0])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone from error
        (size,) = _HEADER.unpack_from(reply)
        end = _HEADER.size + size
        return json.loads(bytes(reply[_HEADER.size : end])), bytes(reply[end:])

    def kill(self) -> None:
        """End the process, which holds no state worth saving, and wait for it."""
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def disown(self) -> None:
        """In a forked child: drop the parent's server without touching it."""
        # A write end left open here would keep the server alive after its owner's death.
        self.close_pipes()
        self.process.returncode = 0  # it is no child of ours; nothing to wait for


def _read_exactly(fd: int, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise ServerGone
        data += chunk
    return data


class LoweringClient:
    """A pool of at most ``servers`` lowering servers. Thread-safe.

    ``idle_s`` and ``servers`` default to the options TORCH_NEURONX_LOWERING_IDLE_S and
    TORCH_NEURONX_LOWERING_SERVERS. ``module`` is what a server runs.
    """

    def __init__(
        self,
        *,
        idle_s: float | None = None,
        servers: int | None = None,
        module: str = "torch_neuronx.lowering.server",
    ) -> None:
        self._idle_s = idle_s
        self._limit = servers
        self._module = module
        self._reset()
        _clients.add(self)

    def _reset(self) -> None:
        self.stats = LoweringStats()
        self._condition = threading.Condition()
        self._idle: list[_Server] = []
        self._all: set[_Server] = set()
        self._taken = 0

    def lower(
        self, program: AnyProgram, platform: str, version: str, handlers: Sequence[str] = ()
    ) -> LoweredReply:
        """Lower ``program`` for ``platform`` to a portable artifact of StableHLO ``version``.

        ``handlers``: names of the custom-call handlers that the plugin has.

        Raises:
            LoweringError: a rule is missing (``NoRuleError``), failed, or took the server down.
        """
        if config.get("TORCH_NEURONX_LOWERING") == "inprocess":
            return _lower_in_process(program, platform, version, handlers)
        request = json.dumps(
            {
                "program": program.to_json(),
                "platform": platform,
                "version": version,
                "handlers": list(handlers),
            }
        ).encode()
        header, module = self._call(request, program)
        seconds = float(header["seconds"])
        with self._condition:
            self.stats.requests += 1
            self.stats.seconds += seconds
            self.stats.errors += not header["ok"]
        if not header["ok"]:
            kind = getattr(errors, header["kind"], LoweringError)
            text = header["text"]
            if header["kind"] == "internal":
                text = f"{_names(program)}: the lowering server failed: {text}"
            raise kind(text)
        return LoweredReply(
            module=module,
            kept=tuple(header["kept"]),
            results=tuple(Array(d, tuple(s)) for d, s in header["results"]),
            checks=tuple((e, m) for e, m in header["checks"]),
            rng_increment=header["rng_increment"],
            aliases=dict(header["aliases"]),
            seconds=seconds,
            bytes_accessed=header["bytes_accessed"],
            handlers=tuple(header["handlers"]),
        )

    def start(self) -> None:
        """Start a server now, so that it loads while the caller does something else."""
        if config.get("TORCH_NEURONX_LOWERING") == "inprocess":
            return
        server = self._take()
        self._give_back(server)

    def close(self) -> None:
        """End every server. A later call starts a new one."""
        with self._condition:
            for server in self._all:
                server.kill()  # a thread that waits for one sees its pipe end
            for server in self._idle:
                server.close_pipes()
            self._idle.clear()
            self._all.clear()

    def pids(self) -> list[int]:
        """Process ids of the servers that run."""
        with self._condition:
            return sorted(s.process.pid for s in self._all if s.alive())

    def ping(self) -> dict[str, Any]:
        """Ask a server which modules it imported (``modules``)."""
        return self._call(b'{"ping": true}', None)[0]

    def _call(self, request: bytes, program: AnyProgram | None) -> tuple[dict[str, Any], bytes]:
        try:
            return self.ask(request, attempts=2)
        except ServerGone as gone:
            raise LoweringError(
                f"{_names(program)}: the lowering server ended twice on this request (status "
                f"{gone.status}; its standard error says why). Try "
                "TORCH_NEURONX_LOWERING=inprocess to debug it."
            ) from gone

    def ask(self, request: bytes, *, attempts: int) -> tuple[dict[str, Any], bytes]:
        """A server's reply: header and bytes.

        Raises:
            ServerGone: so many servers died on it.
        """
        for _ in range(attempts):
            server = self._take()
            reply = None
            try:
                reply = server.call(request)
            except ServerGone:
                pass
            finally:
                # After any other exception, Ctrl-C for one, half a reply may be in the pipe.
                self._give_back(server, broken=reply is None)
            if reply is not None:
                return reply
        gone = ServerGone()
        gone.status = server.process.returncode
        raise gone

    def _take(self) -> _Server:
        limit = self._limit or config.get("TORCH_NEURONX_LOWERING_SERVERS")
        with self._condition:
            while True:
                while self._idle:
                    server = self._idle.pop()
                    if server.alive():
                        self._taken += 1
                        return server
                    self._discard(server)
                if self._taken < limit:
                    break
                self._condition.wait()
            self._taken += 1
            try:
                idle_s = self._idle_s or config.get("TORCH_NEURONX_LOWERING_IDLE_S")
                server = _Server(idle_s, self._module)
            except BaseException:
                self._taken -= 1
                self._condition.notify()
                raise
            self.stats.starts += 1
            self._all.add(server)
            return server

    def _give_back(self, server: _Server, broken: bool = False) -> None:
        with self._condition:
            self._taken -= 1
            if broken or server not in self._all:
                self._discard(server)
            else:
                self._idle.append(server)
            self._condition.notify()

    def _discard(self, server: _Server) -> None:
        self._all.discard(server)
        server.kill()
        server.close_pipes()

    def _after_fork_in_child(self) -> None:
        for server in self._all:
            server.disown()
        self._reset()


def _lower_in_process(
    program: AnyProgram, platform: str, version: str, handlers: Sequence[str]
) -> LoweredReply:
    from torch_neuronx.lowering import build

    start = time.perf_counter()
    if isinstance(program, Text):
        program = from_json(program.text)
    lowered = build.lower(program, platform=platform, version=version, available=handlers)
    return LoweredReply(
        module=lowered.module,
        kept=lowered.kept,
        results=lowered.results,
        checks=tuple((c.exception, c.message) for c in lowered.checks),
        rng_increment=lowered.rng_increment,
        aliases=lowered.aliases,
        bytes_accessed=lowered.bytes_accessed,
        handlers=lowered.handlers,
        seconds=time.perf_counter() - start,
    )


def _names(program: AnyProgram | None) -> str:
    if program is None:
        return "ping"
    return ", ".join(dict.fromkeys(n.op for n in program.nodes)) or "a program without operators"


_clients: weakref.WeakSet[LoweringClient] = weakref.WeakSet()
_default: LoweringClient | None = None
_default_lock = threading.Lock()


def default_client() -> LoweringClient:
    """The client that ``lower`` uses."""
    global _default
    with _default_lock:
        if _default is None:
            _default = LoweringClient()
        return _default


def lower(
    program: AnyProgram, platform: str, version: str, handlers: Sequence[str] = ()
) -> LoweredReply:
    """``LoweringClient.lower`` of the process's client."""
    return default_client().lower(program, platform, version, handlers)


def stats() -> LoweringStats:
    """Counts of the process's client."""
    return dataclasses.replace(default_client().stats)


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for client in list(_clients):
        client._after_fork_in_child()


@atexit.register
def _close_all() -> None:
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
