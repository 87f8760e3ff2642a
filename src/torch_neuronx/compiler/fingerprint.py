"""The part of every cache key that the operator does not know: what would compile it, and for whom.

An executable is native code of one plugin for one CPU. So the fingerprint covers the plugin's
file, its PJRT version and platform, the CPU's features, the worker threads, the registered
handlers, XLA's flags and the keyed options; and, for keys that are answered without lowering, the
sources of ``lowering/``, ``compiler/`` and the planners and the versions of torch, jax and jaxlib.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable

from torch_neuronx import config
from torch_neuronx.compiler.cache import DiskCache, shared_cache

_DISTRIBUTIONS = ("torch", "jax", "jaxlib", "torchneuron")
PORTABLE_ISA = "AVX2"  # what `cache export --portable` compiles for
# Extensions as /proc/cpuinfo names them: what that level means, and what XLA uses beside it where
# the CPU that it compiles on has it.
_LEVEL = {
    "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "movbe", "popcnt", "sse4_1",
    "sse4_2", "ssse3", "xsave",
}  # fmt: skip
_BESIDE = {
    "adx", "aes", "avx_ifma", "avx_ne_convert", "avx_vnni", "avx_vnni_int16", "avx_vnni_int8",
    "gfni", "pclmulqdq", "sha512", "sha_ni", "sm3", "sm4", "sse4a", "vaes", "vpclmulqdq",
}  # fmt: skip
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def context_fingerprint(
    plugin_path: str,
    pjrt_version: str,
    platform_version: str,
    num_threads: int,
    handlers: Iterable[str],
    *,
    sources: bool = True,
    portable: bool = False,
    bound: bool = False,
    cache: DiskCache | None = None,
) -> str:
    """Fingerprint, in hexadecimal, of what stands between a key and an executable.

    ``handlers`` are the names of the custom calls that are registered with the plugin: a module
    says what it calls, but what that does is in the extension and in torch. With
    ``sources=False`` it is that of a module that is already lowered; with ``portable`` it leaves
    out this CPU's features and its threads, for executables that other CPUs run. ``bound``: the
    executables belong to the process's one device, and no launch names it. ``cache`` remembers
    the plugin's hash (default: the process's cache).

    Raises:
        OSError: the plugin cannot be read.
    """
    parts: dict[str, object] = {
        "plugin": plugin_hash(plugin_path, cache),
        "pjrt": pjrt_version,
        "platform": platform_version,
        "cpu": f"{os.uname().machine} {PORTABLE_ISA}" if portable else cpu_features(),
        "threads": "any" if portable else num_threads,
        "bound": bound,
        "handlers": (names := sorted(set(handlers))),
        "flags": os.environ.get("XLA_FLAGS", ""),  # the plugin reads them
        "options": config.keyed(),
    }
    if sources or names:
        parts["extension"] = extension_hash()
        parts["versions"] = distribution_versions()
    if sources:
        parts["sources"] = sources_hash()
        parts["python"] = list(sys.version_info[:2])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def sources_hash(package: str = _PACKAGE) -> str:
    """Hash of every Python source that decides what is kept under a key that needs no lowering."""
    digest = hashlib.sha256()
    paths = [os.path.join(package, "meta_kernels.py")]
    for part in ("compiler", "dynamo", "eager", "frontend", "lowering"):
        paths += sorted(_python_files(os.path.join(package, part)))
    for path in paths:
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).digest()
        digest.update(os.path.relpath(path, package).encode() + b"\0" + content)
    return digest.hexdigest()


def extension_hash(package: str = _PACKAGE) -> str:
    """Hash of the extension module, which builds the keys of calls."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(package)):
        if name.startswith("_C.") and name.endswith(".so"):
            with open(os.path.join(package, name), "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def _python_files(directory: str) -> Iterable[str]:
    for where, directories, names in os.walk(directory):
        if "__pycache__" in directories:
            directories.remove("__pycache__")
        yield from (os.path.join(where, n) for n in names if n.endswith(".py"))


def plugin_hash(path: str, cache: DiskCache | None = None) -> str:
    """SHA-256 of a plugin's file, remembered in the cache by its path, size, inode and times."""
    if cache is None:
        cache = shared_cache()
    path = os.path.realpath(path)
    status = os.stat(path)
    identity = [
        path,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        status.st_dev,
    ]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    entry = cache.get(key, "plugin")
    if entry is not None:
        return str(entry.meta["sha256"])
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache.put(key, {"path": path, "sha256": digest}, b"", "plugin")
    return digest


@functools.cache
def cpu_features() -> str:
    """Architecture and instruction set extensions of this machine's first CPU."""
    features: list[str] = []
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            # The kernel writes one CPU after the other and ours are alike: the first will do.
            text = file.read(1 << 14).decode(errors="replace")
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
        features = sorted(match.group(1).split()) if match else []
    except OSError:
        pass
    return " ".join([os.uname().machine, *features])


def portable_requirements() -> list[str]:
    """Features that a CPU needs to run what this one compiles for ``PORTABLE_ISA``.

    Raises:
        ValueError: this CPU is not of that level.
    """
    have = {*cpu_features().split()}
    if _LEVEL - have:
        raise ValueError(
            f"a portable export is for CPUs with {PORTABLE_ISA}, and this one lacks "
            f"{', '.join(sorted(_LEVEL - have))}. Export on another machine"
        )
    return sorted(_LEVEL | have & _BESIDE)


@functools.cache
def distribution_versions() -> dict[str, str]:
    """Installed versions, by the names of the metadata directories: importing would take longer."""
    pattern = re.compile(
        rf"({'|'.join(_DISTRIBUTIONS)})-([^-]+)\.(?:dist|egg)-info\Z", re.IGNORECASE
    )
    found: dict[str, str] = {}
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue
        for name in names:
            match = pattern.match(name)
            if match:
                found.setdefault(match.group(1).lower(), match.group(2))
    return {name: found.get(name, "not installed") for name in _DISTRIBUTIONS}
