"""The process's compiler, bound to the running plugin."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import threading
import zlib
from typing import Any

from torch_neuronx import _C, config
from torch_neuronx.compiler import host_kernels, options
from torch_neuronx.compiler.cache import shared_cache
from torch_neuronx.compiler.compile import Compiled, Compiler
from torch_neuronx.compiler.fingerprint import PORTABLE_ISA, context_fingerprint, cpu_features
from torch_neuronx.frontend import lower
from torch_neuronx.lowering.program import AnyProgram, from_json

_lock = threading.Lock()
_compiler: Compiler | None = None


class PluginBackend:
    """``compile.Backend`` over the extension."""

    def __init__(self) -> None:
        info = _C.platform()
        # A platform whose lowering rules jax has by name; any other gets the neutral ones.
        self.platform = "cpu" if info["platform_name"].lower() == "cpu" else "neuron"
        version = info["attributes"].get("stablehlo_current_version", (1, 0, 0))
        self.stablehlo_version = ".".join(str(v) for v in version)

    def compile(self, module: bytes, options: bytes) -> _C.Executable:
        return _C.compile(module, options)

    def deserialize(self, data: bytes) -> _C.Executable:
        return _C.deserialize(data)

    def serialize(self, handle: _C.Executable) -> bytes | None:
        try:
            return _C.serialize(handle)
        except NotImplementedError:
            return None


def compiler() -> Compiler:
    """The process's compiler; starts the runtime."""
    global _compiler
    with _lock:
        if _compiler is None:
            info = _C.platform()
            cache = shared_cache()
            handlers = host_kernels.enabled()
            common = (
                info["plugin_path"],
                info["pjrt_version"],
                info["platform_version"],
                config.get("TORCH_NEURONX_CPU_THREADS"),
                handlers,
            )
            bound = len(info["devices"]) == 1
            fingerprint = functools.partial(context_fingerprint, *common, bound=bound, cache=cache)
            backend = PluginBackend()
            is_cpu = backend.platform == "cpu"
            _compiler = Compiler(
                backend,
                fingerprint(),
                cache,
                module_fingerprint=fingerprint(sources=False),
                portable=fingerprint(portable=True) if is_cpu else None,
                features=frozenset(cpu_features().split()),
                lower=functools.partial(lower, handlers=handlers),
                compile_options=options.encode(
                    options.EXACT_CPU if is_cpu else options.EXACT, portable=not bound
                ),
            )
        return _compiler


def portable_compiler() -> Compiler:
    """The process's compiler, whose backend compiles for ``PORTABLE_ISA``. For ``portable``.

    XLA reads what it may use once, when its client is made; so this starts the runtime.

    Raises:
        RuntimeError: the runtime runs already, or the plugin is not for a CPU.
    """
    if _C.is_started():
        raise RuntimeError("a portable export must come before the first use of the device")
    flags = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{flags or ''} --xla_cpu_max_isa={PORTABLE_ISA}"
    try:
        _C.platform()
    finally:
        # Keys are those of a process without it.
        if flags is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = flags
    made = compiler()
    if made.portable is None:
        raise RuntimeError("the plugin is not for a CPU: its executables are its own to move")
    return made


def events(after: int = -1) -> list[dict[str, Any]]:
    """Compile events of this process whose number exceeds ``after``, oldest first."""
    return [dataclasses.asdict(e) for e in _compiler.events(after)] if _compiler else []


def pack(program: AnyProgram) -> str:
    """A program as short text, to be compiled again should its executable be evicted."""
    return base64.b85encode(zlib.compress(program.to_json().encode(), 1)).decode()


def text_of(packed: str) -> str:
    """The canonical text of what ``pack`` made."""
    return zlib.decompress(base64.b85decode(packed)).decode()


def reload_key(key: bytes, source: str) -> str:
    """What a kernel is loaded again by: its key among the compiler's programs, and its program."""
    return json.dumps([base64.b85encode(key).decode(), source])


def make_ready(
    kernel: _C.Kernel,
    compiled: Compiled,
    writes: tuple[int, ...],
    key: bytes,
    donated: tuple[int, ...] = (),
) -> None:
    """Hand a compiled program to the kernel that launches wait for.

    ``writes``: parameters that get a new buffer, in the order of the results. ``key``: its key
    among the compiler's programs. ``donated``: parameters whose buffer it may overwrite.
    """
    meta = compiled.meta
    kernel.set_ready(
        compiled.handle,
        compiled.size_bytes,
        list(meta["kept"]),
        list(writes),
        [tuple(check) for check in meta["checks"]],
        reload_key(key, meta["source"]),
        list(donated),
    )


def reload(text: str) -> _C.Executable:
    """The executable of an evicted kernel, by its reload key: from disk, else compiled again."""
    key, source = json.loads(text)

    def program() -> AnyProgram:
        return from_json(text_of(source))

    return compiler().compile_program(base64.b85decode(key), program, {"source": source}).handle
