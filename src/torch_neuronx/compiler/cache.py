"""The cache on disk (decision D14): atomic writes, verified reads, nothing that others wrote.

Levels, one directory each: ``op`` answers an operator's or graph's key without jax, ``hlo`` a
module's, ``plugin`` remembers hashes of plugin files. An entry is one file:

    magic (8 bytes) | version (u32) | header length (u32) | payload length (u64)
    | header: JSON {"key", "meta"} | payload | SHA-256 of everything before it

Integers are little endian. Files are named by key, and the header repeats it, so that a file under
another's name does not pass. What may be trusted is in ``trust``; leases are in ``lease``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

from torch_neuronx import config
from torch_neuronx.compiler import trust
from torch_neuronx.compiler.lease import Lease, host_token, process_alive

_log = logging.getLogger(__name__)

MAGIC = b"TNRNCACH"
VERSION = 1
LEVELS = ("op", "hlo", "plugin")
_PREFIX = struct.Struct("<8sIIQ")
_DIGEST = 32
_KEY = re.compile(r"[0-9a-f]{16,128}\Z")
_STALE_S = 24 * 3600.0  # temporary files that a process on another host left behind
_TOUCH_S = 3600.0  # how exact the order of last use is


class CorruptEntryError(ValueError):
    """The bytes of an entry are not what was written."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is stored under a key: a JSON object and bytes."""

    meta: dict[str, Any]
    payload: bytes


@dataclasses.dataclass
class CacheStats:
    """Counts of one ``DiskCache`` object since it was made."""

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    stored: int = 0
    store_failures: int = 0
    refused: int = 0


@dataclasses.dataclass(frozen=True)
class Listed:
    """One entry as ``list`` shows it. ``used_s``: last use, seconds since the epoch."""

    level: str
    key: str
    size_bytes: int
    used_s: float
    path: str


def encode_entry(key: str, meta: dict[str, Any], payload: bytes) -> bytes:
    """The bytes of an entry."""
    header = json.dumps({"key": key, "meta": meta}, separators=(",", ":"), sort_keys=True).encode()
    body = _PREFIX.pack(MAGIC, VERSION, len(header), len(payload)) + header + payload
    return body + hashlib.sha256(body).digest()


def decode_entry(key: str, data: bytes) -> Entry:
    """Inverse of ``encode_entry``.

    Raises:
        CorruptEntryError: says which part is wrong.
    """
    if len(data) < _PREFIX.size + _DIGEST:
        raise CorruptEntryError(f"{len(data)} bytes, shorter than an empty entry")
    magic, version, header_size, payload_size = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise CorruptEntryError(f"magic {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise CorruptEntryError(f"version {version}, expected {VERSION}")
    end = len(data) - _DIGEST
    if _PREFIX.size + header_size + payload_size != end:
        raise CorruptEntryError(f"{len(data)} bytes, but the lengths in it add up differently")
    view = memoryview(data)
    if hashlib.sha256(view[:end]).digest() != data[end:]:
        raise CorruptEntryError("the checksum does not match")
    header = json.loads(data[_PREFIX.size : _PREFIX.size + header_size])
    if not isinstance(header, dict) or header.get("key") != key:
        raise CorruptEntryError("it was stored under another key")
    return Entry(header["meta"], data[_PREFIX.size + header_size : end])


class DiskCache:
    """The cache under ``root`` (default: option TORCH_NEURONX_CACHE_DIR). Thread-safe.

    Never raises for what is on the disk: a root that is not ours alone, a full disk or a read-only
    file system mean a warning, once, and a program that goes on without. ``disabled`` says why
    nothing is cached, or is None.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = os.path.abspath(config.get("TORCH_NEURONX_CACHE_DIR") if root is None else root)
        self.stats = CacheStats()
        self.disabled: str | None = None
        self._warned: set[str] = set()
        self._swept = False
        self._directories: set[str] = set()
        try:
            trust.make_root(self.root)
        except trust.UnsafeCacheError as error:
            self.stats.refused += 1
            self._disable(f"the cache is not used, because others could have written it: {error}")
        except OSError as error:
            self._disable(f"the cache is not used, because its root cannot be made: {error}")

    def _disable(self, why: str) -> None:
        self.disabled = why
        self._warn("disabled", why)

    def _warn(self, kind: str, text: str) -> None:
        """Log every time, warn once per kind."""
        _log.info("%s", text)
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"torchneuron: {text}", RuntimeWarning, stacklevel=4)

    def path(self, key: str, level: str = "hlo") -> str:
        """Where the entry of ``key`` (lower-case hexadecimal) lies.

        Raises:
            ValueError: no such level, or not a key.
        """
        if level not in LEVELS:
            raise ValueError(f"cache level: expected one of {', '.join(LEVELS)}, got {level!r}")
        if not _KEY.match(key):
            raise ValueError(f"cache key: expected 16 to 128 hexadecimal digits, got {key!r}")
        return os.path.join(self.root, level, key[:2], key)

    def contains(self, key: str, level: str = "hlo") -> bool:
        """Whether there is a file for ``key``; not counted, and not yet verified."""
        return self.disabled is None and os.path.lexists(self.path(key, level))

    def get(self, key: str, level: str = "hlo") -> Entry | None:
        """The entry of ``key``, or None: absent, corrupt (then removed), or refused."""
        path = self.path(key, level)
        if self.disabled is not None:
            self.stats.misses += 1
            return None
        try:
            entry = decode_entry(key, self._read(path))
        except FileNotFoundError:
            self.stats.misses += 1
            return None
        except trust.UnsafeCacheError as error:
            self.stats.misses += 1
            self.refuse(str(error))
            return None
        except OSError as error:
            self.stats.misses += 1
            self._warn("read", f"a cache entry cannot be read: {error}")
            return None
        except ValueError as error:
            self.stats.misses += 1
            self.reject(key, level, str(error))
            return None
        self.stats.hits += 1
        return entry

    def _read(self, path: str) -> bytes:
        for directory in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
            if directory not in self._directories:
                trust.check_directory(directory)
                self._directories.add(directory)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if os.path.islink(path):
                raise trust.UnsafeCacheError(f"{path}: it is a symlink. Remove it.") from error
            raise
        try:
            status = os.fstat(fd)
            trust.check_file(status, path)
            data = bytearray()
            while chunk := os.read(fd, max(status.st_size - len(data), 1)):
                data += chunk
            if time.time() - status.st_mtime > _TOUCH_S:
                with contextlib.suppress(OSError):
                    os.utime(fd)  # the order of last use, for prune
        finally:
            os.close(fd)
        return bytes(data)

    def reject(self, key: str, level: str, why: str) -> None:
        """Remove an entry whose content turned out to be unusable, count and report it."""
        path = self.path(key, level)
        self.stats.corrupt += 1
        with contextlib.suppress(OSError):
            os.unlink(path)
        self._warn("corrupt", f"a corrupt cache entry was removed, to be made anew: {path}: {why}")

    def refuse(self, why: str) -> None:
        """Count and report an entry that is whole and must not be used here."""
        self.stats.refused += 1
        self._warn("refused", f"a cache entry is not used: {why}")

    def put(self, key: str, meta: dict[str, Any], payload: bytes, level: str = "hlo") -> bool:
        """Store an entry atomically. False when the disk did not take it.

        ``meta`` must be a JSON object.
        """
        path = self.path(key, level)
        if self.disabled is not None:
            return False
        data = encode_entry(key, meta, payload)
        temporary = None
        try:
            self._sweep()
            directory = os.path.dirname(path)
            self._make(os.path.dirname(directory))
            self._make(directory)
            self._make(self._temporary_directory())
            name = f"{host_token()}-{os.getpid()}-{os.urandom(8).hex()}"
            temporary = os.path.join(self._temporary_directory(), name)
            self._write(temporary, data)
            os.rename(temporary, path)
            temporary = None
        except OSError as error:
            self.stats.store_failures += 1
            self._directories.clear()  # the root may have been removed under us
            self._warn("store", f"the cache cannot store: {error}; going on without")
            return False
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        self.stats.stored += 1
        return True

    def _write(self, path: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)  # or a power failure may leave the name without the bytes
        finally:
            os.close(fd)

    def _temporary_directory(self) -> str:
        # One directory beside the entries, not one per shard: same file system, so that rename is
        # atomic, and one place to look for what dead processes left.
        return os.path.join(self.root, "tmp")

    def _make(self, directory: str) -> None:
        if directory in self._directories and os.path.isdir(directory):
            return
        if not os.path.isdir(self.root):
            trust.make_root(self.root)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        trust.check_directory(directory)
        self._directories.add(directory)

    def _sweep(self) -> None:
        """Once per process: remove the temporary files of processes that are gone."""
        if self._swept:
            return
        self._swept = True
        with contextlib.suppress(OSError), os.scandir(os.path.join(self.root, "lock")) as found:
            for item in found:
                with contextlib.suppress(OSError):
                    if time.time() - item.stat(follow_symlinks=False).st_mtime > _STALE_S:
                        os.unlink(item.path)
        with contextlib.suppress(OSError), os.scandir(self._temporary_directory()) as found:
            for item in found:
                token, _, rest = item.name.partition("-")
                pid = rest.partition("-")[0]
                with contextlib.suppress(OSError):
                    here = token == host_token() and pid.isdigit()
                    old = time.time() - item.stat(follow_symlinks=False).st_mtime > _STALE_S
                    if old or (here and not process_alive(int(pid))):
                        os.unlink(item.path)

    def lease(self, key: str, **options: Any) -> Lease:
        """The right to make the entry of ``key``, one process at a time; see ``Lease``.

        Without a usable cache the lease is given to everybody.
        """
        self.path(key)
        directory = os.path.join(self.root, "lock")
        if self.disabled is None:
            try:
                self._make(directory)
                return Lease(os.path.join(directory, key), **options)
            except OSError as error:
                self._warn("lease", f"the cache cannot lock: {error}; going on without")
        return Lease(None, **options)

    def _paths(self, level: str) -> Iterator[str]:
        for directory, _, names in os.walk(os.path.join(self.root, level)):
            yield from (os.path.join(directory, n) for n in names if _KEY.match(n))

    @staticmethod
    def _listed(level: str, path: str) -> Listed | None:
        try:
            status = os.lstat(path)
        except OSError:
            return None  # removed while we looked
        if not stat.S_ISREG(status.st_mode):
            return None
        return Listed(level, os.path.basename(path), status.st_size, status.st_mtime, path)

    def verify(self) -> tuple[Listed, ...]:
        """Read every entry; remove and return those that are corrupt or refused."""
        bad = []
        for item in self.list():
            before = self.stats.corrupt + self.stats.refused
            if self.get(item.key, item.level) is None and (
                self.stats.corrupt + self.stats.refused > before
            ):
                with contextlib.suppress(OSError):
                    os.unlink(item.path)
                bad.append(item)
        return tuple(bad)

    def prune(self, max_bytes: int) -> int:
        """Remove the least recently used entries until at most ``max_bytes`` are left.

        Returns the bytes removed. An ``op`` entry whose ``hlo`` entry went is a miss later on.
        """
        items = sorted(self.list(), key=lambda x: x.used_s)
        total = sum(x.size_bytes for x in items)
        removed = 0
        for item in items:
            if total - removed <= max_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(item.path)
                removed += item.size_bytes
        return removed

    def list(self, level: str | None = None) -> tuple[Listed, ...]:
        """Every entry, by level and key."""
        found = [self._listed(lv, path) for lv in LEVELS for path in self._paths(lv)]
        kept = (x for x in found if x is not None and level in (None, x.level))
        return tuple(sorted(kept, key=lambda x: (x.level, x.key)))


_shared: dict[str, DiskCache] = {}
_shared_lock = threading.Lock()


def shared_cache() -> DiskCache:
    """The process's cache, under the root that the options name."""
    root = config.get("TORCH_NEURONX_CACHE_DIR")
    with _shared_lock:
        if root not in _shared:
            _shared[root] = DiskCache(root)
        return _shared[root]


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
