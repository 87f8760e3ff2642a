"""Executables on the way to another cache: one file, checked entry by entry, signed on request.

A zip archive: ``manifest.json`` ({"version", "entries": {"level/key": SHA-256}, "requires"}), the
entries as they lie in the cache, and ``manifest.hmac`` (HMAC-SHA256 of the manifest, hexadecimal)
if there is a secret. Whether this machine may run an executable is in its key: what was made for
another plugin or CPU is carried along and never found. Only ``portable`` makes executables for
other CPUs; ``requires`` names the features that these need.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence

from torch_neuronx.compiler.cache import CorruptEntryError, DiskCache, decode_entry
from torch_neuronx.compiler.fingerprint import cpu_features

VERSION = 1
_LEVELS = ("op", "hlo")
_NAME = re.compile(r"(op|hlo)/([0-9a-f]{16,128})\Z")


class BundleError(ValueError):
    """A file is refused; says what is wrong with it."""


def export(cache: DiskCache, path: str, secret: bytes | None = None) -> int:
    """Write every executable of ``cache`` to ``path``; how many entries.

    Raises:
        OSError: the file cannot be written.
    """
    return write(path, _stored(cache), secret)


def write(
    path: str,
    entries: Iterable[tuple[str, str, bytes]],
    secret: bytes | None,
    requires: Sequence[str] = (),
) -> int:
    """Write entries (level, key, bytes) to ``path``; how many. ``requires``: of the CPU.

    Raises:
        OSError: the file cannot be written.
    """
    digests: dict[str, str] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for level, key, data in entries:
            name = f"{level}/{key}"
            if name in digests:
                continue
            digests[name] = hashlib.sha256(data).hexdigest()
            archive.writestr(name, data)
        content = {"version": VERSION, "entries": digests, "requires": list(requires)}
        manifest = json.dumps(content, sort_keys=True).encode()
        archive.writestr("manifest.json", manifest)
        if secret is not None:
            archive.writestr("manifest.hmac", _sign(secret, manifest))
    return len(digests)


def _stored(cache: DiskCache) -> Iterator[tuple[str, str, bytes]]:
    for level in _LEVELS:
        for item in cache.list(level):
            if cache.get(item.key, level) is None:
                continue  # corrupt or not ours, which the cache has reported
            with open(item.path, "rb") as file:
                yield level, item.key, file.read()


def take(cache: DiskCache, path: str, secret: bytes | None = None) -> int:
    """Store the executables of ``path`` in ``cache``; how many entries. All are checked first.

    Whoever calls this trusts the file: what is in it will be run.

    Raises:
        BundleError: it is no such file, damaged, for other CPUs, or its signature is missing or
            wrong.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = archive.read("manifest.json")
            if secret is not None:
                _check_signature(archive, secret, manifest)
            entries = _entries(archive, manifest)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise BundleError(f"not a file of `torchneuron cache export`: {error}") from error
    for level, key, data in entries:
        entry = decode_entry(key, data)
        cache.put(key, entry.meta, entry.payload, level)
    return len(entries)


def _sign(secret: bytes, manifest: bytes) -> str:
    return hmac.new(secret, manifest, hashlib.sha256).hexdigest()


def _check_signature(archive: zipfile.ZipFile, secret: bytes, manifest: bytes) -> None:
    if "manifest.hmac" not in archive.namelist():
        raise BundleError("it is not signed. Export it with --key-file, or import it without")
    if not hmac.compare_digest(archive.read("manifest.hmac").decode(), _sign(secret, manifest)):
        raise BundleError("its signature does not fit this key")


def _entries(archive: zipfile.ZipFile, manifest: bytes) -> list[tuple[str, str, bytes]]:
    try:
        listed = json.loads(manifest)
        version, digests = listed["version"], dict(listed["entries"])
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(f"its manifest is damaged: {error}") from error
    if version != VERSION:
        raise BundleError(f"its version is {version}, expected {VERSION}")
    missing = sorted({*listed.get("requires", ())} - {*cpu_features().split()})
    if missing:
        raise BundleError(
            f"it was made for CPUs with {', '.join(missing)}, which this one lacks. Export it on a "
            "machine whose CPU has no more than this one"
        )
    found = []
    for name, digest in digests.items():
        match = _NAME.match(name)
        if match is None:
            raise BundleError(f"{name!r} is no entry's name")
        data = archive.read(name)
        if hashlib.sha256(data).hexdigest() != digest:
            raise BundleError(f"{name} is not what was exported")
        try:
            decode_entry(match[2], data)
        except CorruptEntryError as error:
            raise BundleError(f"{name} is damaged: {error}") from error
        found.append((match[1], match[2], data))
    return found
