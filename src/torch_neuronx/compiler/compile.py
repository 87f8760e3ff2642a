"""From a program to a loaded executable: two cache levels, single flight, worker threads.

``Compiler.compile_program`` looks into level ``op`` under the operator's own key; that needs no
lowering. On a miss the program is lowered, the module looked up in level ``hlo``, and compiled if
it is not there either. An ``op`` entry holds what the caller must know of the module and points to
the ``hlo`` entry, which holds the executable. After a miss, it is looked for among the executables
that another machine exported for this one, too (``portable``). Knows no device: ``Backend`` is the
seam.
"""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from torch_neuronx import config
from torch_neuronx.compiler import artifacts, options, progress
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.ranges import carried_state, profiled
from torch_neuronx.lowering import client
from torch_neuronx.lowering.client import LoweredReply
from torch_neuronx.lowering.program import AnyProgram, Array

_PROGRESS_AFTER_S = 2.0
_MAX_EVENTS = 4096


class Backend(Protocol):
    """What a ``Compiler`` needs of a plugin. All methods may be called from any thread.

    ``platform`` is "cpu" for a CPU plugin and a neutral name otherwise; ``stablehlo_version`` is
    the newest version the plugin reads, such as "1.9.3".
    """

    platform: str
    stablehlo_version: str

    def compile(self, module: bytes, options: bytes) -> Any:
        """A loaded executable of a portable artifact and CompileOptionsProto bytes."""

    def deserialize(self, data: bytes) -> Any:
        """A loaded executable of what ``serialize`` gave. Raises if it is not usable."""

    def serialize(self, handle: Any) -> bytes | None:
        """The executable's bytes, or None where the plugin cannot."""


class Lower(Protocol):
    """The type of ``lowering.client.lower``."""

    def __call__(self, program: AnyProgram, platform: str, version: str) -> LoweredReply: ...


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A loaded executable.

    ``meta`` has ``kept`` (parameters that the module takes), ``results`` (``Array`` each),
    ``checks`` (exception name and message each), ``rng_increment``, ``aliases`` (result index ->
    kept parameter's index), ``bytes_accessed``, ``handlers`` (names of the custom-call handlers it
    needs) and what the caller gave as ``extra_meta`` (as JSON gives it back).
    ``source``: "l1" and "l2" were loaded from the disk, "compiled" was compiled here.
    ``size_bytes``: of the serialized form, 0 if not known.
    """

    handle: Any
    meta: dict[str, Any]
    source: str
    lower_s: float
    compile_s: float
    load_s: float
    size_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class CompileEvent:
    """One executable that was made or loaded; ``size_bytes`` of its serialized form, if known.

    ``number`` counts a process's events from 0. ``handlers``: the host kernels that it calls.
    """

    number: int
    name: str
    source: str
    lower_s: float
    compile_s: float
    load_s: float
    size_bytes: int
    time_s: float  # when it was ready, seconds since the epoch
    handlers: tuple[str, ...] = ()


@dataclasses.dataclass
class CompilerStats:
    """How often a program was answered by each source, or failed; and how many waited."""

    l1: int = 0
    l2: int = 0
    compiled: int = 0
    failed: int = 0
    joined: int = 0  # found the same key under way and waited for it


class Pending(Future[Compiled]):
    """The executable to come; ``lowered`` is set once its module is there, or nothing will be."""

    def __init__(self) -> None:
        super().__init__()
        self.lowered = threading.Event()
        self.add_done_callback(lambda _: self.lowered.set())


@dataclasses.dataclass
class _Flight:
    """One key under way."""

    future: Pending
    name: str
    call: str = ""  # digest of the compile options and of the caller's key


class Compiler:
    """Makes executables. Thread-safe, and safe to use in a forked child.

    ``fingerprint`` is ``context_fingerprint(...)``, and ``module_fingerprint`` the same with
    ``sources=False``: the first is part of every ``op`` key, the second of every ``hlo`` key.
    ``portable`` is the one with ``portable=True``, part of the keys of executables that were made
    elsewhere (None: there are none), and ``features`` are those of this CPU, which must cover what
    such an executable needs.
    ``cache`` None: nothing is kept on disk. ``compile_options`` are CompileOptionsProto bytes.
    ``progress_after_s``: how long somebody waits before a progress line. ``listeners`` are told
    the (level, key) pairs of an executable once it is on the disk, in any thread.
    """

    def __init__(
        self,
        backend: Backend,
        fingerprint: str,
        cache: DiskCache | None,
        *,
        module_fingerprint: str | None = None,
        portable: str | None = None,
        features: frozenset[str] = frozenset(),
        lower: Lower = client.lower,
        compile_options: bytes | None = None,
        workers: int | None = None,
        progress_after_s: float = _PROGRESS_AFTER_S,
    ) -> None:
        self.backend = backend
        self.fingerprint = fingerprint
        self.module_fingerprint = module_fingerprint or fingerprint
        self.portable = portable
        self.features = features
        disabled = config.get("TORCH_NEURONX_DISABLE_NEFF_CACHE")
        self.cache = None if disabled else cache
        self.stats = CompilerStats()
        self.listeners: list[Callable[[Sequence[tuple[str, str]]], None]] = []
        self.lower = lower
        self._options = options.encode() if compile_options is None else compile_options
        self._workers = workers
        self._progress_after_s = progress_after_s
        self._events: collections.deque[CompileEvent] = collections.deque(maxlen=_MAX_EVENTS)
        self._recorded = 0
        self._lowered: set[str] = set()  # digests of the calls whose artefacts were kept
        self._reset()
        _compilers.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}
        self._module_flights: dict[str, Future[tuple[Any, str, float, float, int]]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def compile_program(
        self,
        l1_key: bytes,
        make_program: Callable[[], AnyProgram],
        extra_meta: dict[str, Any] | None = None,
        *,
        compile_options: bytes | None = None,
    ) -> Compiled:
        """The executable of the program that ``l1_key`` stands for; waits until it is there.

        ``make_program`` is called, in this thread, only if the key is not in the cache. Whoever
        asks for a key that is under way waits for it. ``extra_meta`` is a JSON object that is kept
        with the entry; a value given here comes before one that was kept.

        Raises:
            LoweringError: the program cannot be lowered.
            Exception: what the backend raises when it cannot compile.
        """
        choice = self._options if compile_options is None else compile_options
        call = call_digest(l1_key, choice)
        key = self.key_of(call)
        flight, mine = self._enter(key, "", call)
        if mine:
            try:
                found = self._find(call, extra_meta)
                if found is not None:
                    self._land(key, flight, found)
                    return found
                program = make_program()
                flight.name = program_name(program)
                self._start(key, flight, program, extra_meta, choice)
            except BaseException as error:
                self._crash(key, flight, error)
                raise
        return self.wait(flight.future)

    def submit(
        self,
        l1_key: bytes,
        make_program: Callable[[], AnyProgram],
        extra_meta: dict[str, Any] | None = None,
        *,
        compile_options: bytes | None = None,
        name: str = "",
    ) -> Pending:
        """``compile_program`` in the background; ``make_program`` is called in a worker thread.

        Wait for the result with ``wait``, which reports progress.
        """
        choice = self._options if compile_options is None else compile_options
        call = call_digest(l1_key, choice)
        key = self.key_of(call)
        flight, mine = self._enter(key, name, call)
        if mine:
            try:
                self._start(key, flight, make_program, extra_meta, choice)
            except BaseException as error:
                self._crash(key, flight, error)
                raise
        return flight.future

    def lookup(self, l1_key: bytes, *, compile_options: bytes | None = None) -> Compiled | None:
        """The executable if the disk has it under this key; never lowers or compiles long."""
        choice = self._options if compile_options is None else compile_options
        return self._find(call_digest(l1_key, choice), None)

    def wait(self, future: Future[Compiled]) -> Compiled:
        """The result of ``submit``; one progress line if it takes long."""
        try:
            return future.result(timeout=self._progress_after_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # the compilation itself raised a TimeoutError
                return future.result()
        line = progress.progress_line(self.pending(), self._progress_after_s)
        progress.say(line, level=1, terminal=True)
        return future.result()

    def pending(self) -> list[str]:
        """Names of what is being compiled, first come first."""
        with self._lock:
            return [f.name for f in self._flights.values() if f.name and not f.future.done()]

    def events(self, after: int = -1) -> list[CompileEvent]:
        """The last executables made or loaded whose number exceeds ``after``, oldest first."""
        with self._lock:
            return [e for e in self._events if e.number > after]

    def drain(self) -> None:
        """Wait until nothing is under way and everything is stored."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def key_of(self, call: str) -> str:
        """The key, in level ``op``, of a call's digest."""
        return hashlib.sha256(f"{self.fingerprint} {call}".encode()).hexdigest()

    def portable_keys(self, call: str, module: bytes, choice: bytes) -> tuple[str, str]:
        """The keys of an executable for other machines, in levels ``op`` and ``hlo``."""
        assert self.portable is not None
        return self._portable_key(call), _module_key(self.portable, module, choice)

    def _portable_key(self, call: str) -> str:
        return hashlib.sha256(f"{self.portable} {call}".encode()).hexdigest()

    def _module_key(self, module: bytes, choice: bytes) -> str:
        return _module_key(self.module_fingerprint, module, choice)

    def _enter(self, key: str, name: str, call: str) -> tuple[_Flight, bool]:
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                self.stats.joined += 1
                return flight, False
            flight = self._flights[key] = _Flight(Pending(), name, call)
            # Marked as running: a waiter that gives up must not cancel it for the others.
            flight.future.set_running_or_notify_cancel()
            return flight, True

    def _land(self, key: str, flight: _Flight, compiled: Compiled) -> None:
        with self._lock:
            self._flights.pop(key, None)
        if not flight.future.done():
            flight.future.set_result(compiled)

    def _crash(self, key: str, flight: _Flight, error: BaseException) -> None:
        with self._lock:
            self._flights.pop(key, None)
            self.stats.failed += 1
        if not flight.future.done():
            flight.future.set_exception(error)

    def _start(
        self,
        key: str,
        flight: _Flight,
        program: AnyProgram | Callable[[], AnyProgram],
        extra: dict[str, Any] | None,
        choice: bytes,
    ) -> None:
        work = (carried_state(), key, flight, program, extra, choice)
        try:
            task = self._executor().submit(self._fly, *work)
        except RuntimeError:  # the interpreter is about to exit and takes no more
            self._fly(*work)
            return

        def dropped(task: Future[None]) -> None:
            if task.cancelled():
                error = RuntimeError(f"{flight.name}: not compiled, because the program is ending")
                self._crash(key, flight, error)

        task.add_done_callback(dropped)

    def _fly(
        self,
        state: contextlib.AbstractContextManager[None],
        key: str,
        flight: _Flight,
        program: AnyProgram | Callable[[], AnyProgram],
        extra: dict[str, Any] | None,
        choice: bytes,
    ) -> None:
        """In a worker: look, else lower, look, else compile; publish, then store."""
        try:
            with state:
                looked = not callable(program)
                found = None if looked else self._find(flight.call, extra)
                if found is None:
                    found = self._make(key, flight, program, extra, choice)
            self._land(key, flight, found)
        except BaseException as error:
            self._crash(key, flight, error)

    def _make(
        self,
        key: str,
        flight: _Flight,
        program: AnyProgram | Callable[[], AnyProgram],
        extra: dict[str, Any] | None,
        choice: bytes,
    ) -> Compiled:
        with contextlib.ExitStack() as stack:
            if self.cache is not None:
                cache, lease = self.cache, self.cache.lease(key)
                found = lease.acquire(
                    lambda: (
                        self._load(key, extra)
                        if cache.contains(key, "op") and not self._shown(flight.call)
                        else None
                    )
                )
                if found is not None:
                    return found
                stack.callback(lease.release)
            if callable(program):
                program = program()
            flight.name = flight.name or program_name(program)
            with profiled("lower", flight.name):
                reply = self.lower(program, self.backend.platform, self.backend.stablehlo_version)
            flight.future.lowered.set()
            if artifacts.enabled():
                self._lowered.add(flight.call)
            described = _describe(reply, extra)
            handle, source, compile_s, load_s, size = self._executable(
                flight.name, reply.module, choice, program
            )
            compiled = Compiled(
                handle, _restore(described, extra), source, reply.seconds, compile_s, load_s, size
            )
            self._record(flight.name, compiled, size)
            # Whoever waits goes on now; the key stays under way until it is stored, so that
            # nobody in between finds neither.
            flight.future.set_result(compiled)
            if self.cache is not None:
                module_key = self._module_key(reply.module, choice)
                meta = {
                    "name": flight.name,
                    "module": module_key,
                    "program": described,
                    "call": flight.call,
                    "options": base64.b85encode(choice).decode(),
                }
                # Without a serialized executable, the module at least saves the lowering.
                self.cache.put(key, meta, b"" if size else _pack(choice, reply.module), "op")
                self._tell(key, module_key)
            return compiled

    def _find(self, call: str, extra: dict[str, Any] | None) -> Compiled | None:
        """From the disk, made here or for machines like this one."""
        if self._shown(call):
            return None
        found = self._load(self.key_of(call), extra)
        if found is None and self.portable is not None and self.cache is not None:
            key = self._portable_key(call)
            if self.cache.contains(key, "op"):
                found = self._load(key, extra)
        return found

    def _shown(self, call: str) -> bool:
        """Whether a call is lowered whatever the disk has, because somebody wants to see it."""
        return artifacts.enabled() and call not in self._lowered

    def _load(self, key: str, extra: dict[str, Any] | None) -> Compiled | None:
        """From the disk, without lowering. Whatever is wrong there is a miss."""
        if self.cache is None:
            return None
        entry = self.cache.get(key, "op")
        if entry is None:
            return None
        try:
            requires = {str(r) for r in entry.meta.get("requires", ())}
            name, module_key = str(entry.meta["name"]), str(entry.meta["module"])
            meta = _restore(entry.meta["program"], extra)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.cache.reject(key, "op", f"it does not describe an executable: {error!r}")
            return None
        missing = sorted(requires - self.features)
        if missing:
            self.cache.refuse(f"it was made for CPUs with {', '.join(missing)}; this one has not")
            return None
        compile_s = load_s = 0.0
        if entry.payload:
            choice, module = _unpack(entry.payload)
            handle, source, compile_s, load_s, size = self._executable(name, module, choice, None)
        else:
            loaded = self._load_module(module_key)
            if loaded is None:
                return None
            source = "l1"
            handle, load_s, size = loaded
        compiled = Compiled(handle, meta, source, 0.0, compile_s, load_s, size)
        self._record(name, compiled, size)
        self._tell(key, module_key)
        return compiled

    def _tell(self, key: str, module_key: str) -> None:
        for listener in self.listeners:
            listener([("op", key), ("hlo", module_key)])

    def _load_module(self, module_key: str) -> tuple[Any, float, int] | None:
        """Handle, seconds and size of a stored executable."""
        entry = self.cache.get(module_key, "hlo") if self.cache is not None else None
        if entry is None:
            return None
        start = time.perf_counter()
        try:
            with profiled("load", entry.meta.get("name", "")):
                handle = self.backend.deserialize(entry.payload)
        except Exception as error:
            assert self.cache is not None
            self.cache.reject(module_key, "hlo", f"the plugin does not load it: {error}")
            return None
        return handle, time.perf_counter() - start, len(entry.payload)

    def _executable(
        self, name: str, module: bytes, choice: bytes, program: AnyProgram | None
    ) -> tuple[Any, str, float, float, int]:
        """Handle, source, compile and load seconds, and serialized size of a lowered module.

        Different keys may lower to one module: that too is compiled once at a time.
        """
        key = self._module_key(module, choice)
        with self._lock:
            other = self._module_flights.get(key)
            if other is None:
                mine = self._module_flights[key] = Future()
        if other is not None:
            handle, _, _, _, size = other.result()
            return handle, "l2", 0.0, 0.0, size
        try:
            result = self._load_or_compile(name, key, module, choice, program)
            mine.set_result(result)
            return result
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._module_flights.pop(key, None)

    def _load_or_compile(
        self, name: str, key: str, module: bytes, choice: bytes, program: AnyProgram | None
    ) -> tuple[Any, str, float, float, int]:
        loaded = self._load_module(key)
        if loaded is not None:
            self._preserve(name, key, module, choice, program)
            return loaded[0], "l2", 0.0, loaded[1], loaded[2]
        start = time.perf_counter()
        with profiled("compile", name):
            handle = self.backend.compile(module, choice)
        compile_s = time.perf_counter() - start
        kept = self.cache is not None or artifacts.enabled()
        data = self.backend.serialize(handle) if kept else None
        size = len(data) if data is not None and self.cache is not None else 0
        meta = {"name": name, "compile_s": compile_s}
        if self.cache is not None and data is not None:
            self.cache.put(key, meta, data, "hlo")
        self._preserve(name, key, module, choice, program, data, meta)
        return handle, "compiled", compile_s, 0.0, size

    def _preserve(
        self,
        name: str,
        key: str,
        module: bytes,
        choice: bytes,
        program: AnyProgram | None,
        data: bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Keep artefacts, if they are asked for; without ``meta``, of what the disk has."""
        if not artifacts.enabled():
            return
        if meta is None:
            entry = self.cache.get(key, "hlo") if self.cache is not None else None
            data, meta = (entry.payload, entry.meta) if entry else (None, {})
        text = None if program is None else program.to_json()
        artifacts.preserve(name, text, module, choice, data, {"key": key, **meta, "name": name})

    def _record(self, name: str, compiled: Compiled, size: int) -> None:
        with self._lock:
            setattr(self.stats, compiled.source, getattr(self.stats, compiled.source) + 1)
            event = CompileEvent(
                self._recorded,
                name,
                compiled.source,
                compiled.lower_s,
                compiled.compile_s,
                compiled.load_s,
                size,
                time.time(),
                tuple(compiled.meta.get("handlers", ())),
            )
            self._recorded += 1
            self._events.append(event)
        progress.say(
            f"torchneuron: {name}: {event.source}, lowered in {event.lower_s:.3f} s, compiled in "
            f"{event.compile_s:.3f} s, loaded in {event.load_s:.3f} s, {size} bytes",
            level=2,
        )

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                workers = self._workers or config.get("TORCH_NEURONX_COMPILE_WORKERS")
                self._pool = ThreadPoolExecutor(workers, thread_name_prefix="torchneuron-compile")
            return self._pool

    def _after_fork_in_child(self) -> None:
        # The parent's threads are not here: their flights would never land.
        self._reset()


def call_digest(l1_key: bytes, choice: bytes) -> str:
    """What a caller asks for, whatever the machine: its key and the compile options."""
    return hashlib.sha256(len(choice).to_bytes(8, "big") + choice + l1_key).hexdigest()


def _module_key(fingerprint: str, module: bytes, choice: bytes) -> str:
    digest = hashlib.sha256(fingerprint.encode())
    digest.update(len(choice).to_bytes(8, "big") + choice + module)
    return digest.hexdigest()


def program_name(program: AnyProgram) -> str:
    """What to call a program in reports: its operator, or its first and how many there are."""
    ops = [n.op for n in program.nodes]
    if len(ops) == 1:
        return ops[0]
    return f"a graph of {len(ops)} operators ({ops[0]}, ...)" if ops else "an empty graph"


def _pack(choice: bytes, module: bytes) -> bytes:
    """Compile options and module, as one payload."""
    return len(choice).to_bytes(8, "big") + choice + module


def _unpack(payload: bytes) -> tuple[bytes, bytes]:
    """Inverse of ``_pack``."""
    end = 8 + int.from_bytes(payload[:8], "big")
    return payload[8:end], payload[end:]


def _describe(reply: LoweredReply, extra: dict[str, Any] | None) -> dict[str, Any]:
    """The meta of an entry, as JSON would give it back."""
    own = {
        "kept": reply.kept,
        "results": [[r.dtype, r.shape] for r in reply.results],
        "checks": reply.checks,
        "rng_increment": reply.rng_increment,
        "aliases": list(reply.aliases.items()),
        "bytes_accessed": reply.bytes_accessed,
        "handlers": reply.handlers,
    }
    described: dict[str, Any] = json.loads(json.dumps({**(extra or {}), **own}))
    return described


def _restore(described: dict[str, Any], extra: dict[str, Any] | None) -> dict[str, Any]:
    """``Compiled.meta`` of an entry's meta."""
    given = json.loads(json.dumps(extra)) if extra else {}
    return {
        **described,
        **given,
        "kept": tuple(described["kept"]),
        "results": tuple(Array(d, tuple(s)) for d, s in described["results"]),
        "checks": tuple((e, m) for e, m in described["checks"]),
        "rng_increment": described["rng_increment"],
        "aliases": dict(described["aliases"]),
        "handlers": tuple(described["handlers"]),
    }


_compilers: weakref.WeakSet[Compiler] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for compiler in list(_compilers):
        compiler._after_fork_in_child()


def _cancel_at_exit() -> None:
    """What has not begun is dropped; what runs is finished, since a thread cannot be ended."""
    for compiler in list(_compilers):
        pool = compiler._pool
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


os.register_at_fork(after_in_child=_after_fork_in_child)
# Before concurrent.futures joins its threads, which is before atexit; there is no public hook.
getattr(threading, "_register_atexit", lambda f: None)(_cancel_at_exit)
