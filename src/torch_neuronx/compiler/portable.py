"""``torchneuron cache export --portable``: the cache's programs, compiled for any CPU with AVX2.

An executable is native code for the CPU that it was compiled on, and its key says so. Each ``op``
entry keeps its program and the digest of its caller's key, so that it can be lowered and compiled
again for a common CPU, and stored under a key that other machines compute. What such an executable
needs of a CPU goes with it.
"""

from __future__ import annotations

import base64
import dataclasses
from concurrent.futures import ThreadPoolExecutor

from torch_neuronx import config
from torch_neuronx.compiler import bundle, fingerprint, session
from torch_neuronx.compiler.cache import Entry, encode_entry
from torch_neuronx.compiler.compile import Compiler
from torch_neuronx.lowering.program import from_json

_Stored = tuple[str, str, bytes]  # level, key, bytes


@dataclasses.dataclass(frozen=True)
class Exported:
    """How many programs were written and left out, and the features that their CPU needs."""

    programs: int
    skipped: int
    requires: tuple[str, ...]


def export(compiler: Compiler, path: str, secret: bytes | None = None) -> Exported:
    """Write the programs of ``compiler``'s cache to ``path``. Import it with ``bundle.take``.

    ``compiler`` is ``session.portable_compiler()``. Entries of other versions, options or plugins
    are left out: here nobody can make them.

    Raises:
        OSError: the file cannot be written.
        RuntimeError: the plugin compiles for this CPU in spite of its flag, or there is no cache.
        ValueError: this CPU has no AVX2.
    """
    cache = compiler.cache
    if cache is None:
        raise RuntimeError("there is no cache to export (TORCH_NEURONX_DISABLE_NEFF_CACHE)")
    requires = fingerprint.portable_requirements()
    listed = [(item.key, cache.get(item.key, "op")) for item in cache.list("op")]
    entries = [e for key, e in listed if e is not None and _is_ours(compiler, key, e)]
    with ThreadPoolExecutor(config.get("TORCH_NEURONX_COMPILE_WORKERS")) as pool:
        made = pool.map(lambda e: _make(compiler, e, requires), entries)
        stored = (item for items in made for item in items)
        bundle.write(path, stored, secret, requires)
    return Exported(len(entries), len(listed) - len(entries), tuple(requires))


def _is_ours(compiler: Compiler, key: str, entry: Entry) -> bool:
    """Whether a process like this one made an entry, and kept its program."""
    call = entry.meta.get("call", "")
    return key == compiler.key_of(call) and "source" in entry.meta["program"]


def _make(compiler: Compiler, entry: Entry, requires: list[str]) -> list[_Stored]:
    """The two entries of a program, compiled for other CPUs."""
    backend, meta = compiler.backend, dict(entry.meta)
    choice = base64.b85decode(meta["options"])
    program = from_json(session.text_of(meta["program"]["source"]))
    module = compiler.lower(program, backend.platform, backend.stablehlo_version).module
    data = backend.serialize(backend.compile(module, choice))
    if data is None:
        raise RuntimeError("the plugin cannot serialize executables")
    if b"+avx512" in data:
        raise RuntimeError("the plugin compiles for AVX-512 in spite of --xla_cpu_max_isa=AVX2")
    key, module_key = compiler.portable_keys(meta["call"], module, choice)
    meta |= {"module": module_key, "requires": requires}
    about = {"name": meta["name"], "requires": requires}
    return [
        ("op", key, encode_entry(key, meta, b"")),
        ("hlo", module_key, encode_entry(module_key, about, data)),
    ]
