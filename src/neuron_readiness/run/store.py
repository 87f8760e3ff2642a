"""A record's folder: finished stages, written whole or not at all, and room kept for the record."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

_RESERVE_BYTES = 512 * 1024


class Store:
    """``out/stages/NAME.json`` holds each stage's result with the fingerprint it is valid for."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.stages = out / "stages"
        self._reserve = out / ".reserve"

    def prepare(self) -> None:
        """Makes the folders, and a file that gives up its room when the disk fills."""
        self.stages.mkdir(parents=True, exist_ok=True)
        if not self._reserve.exists():
            self._reserve.write_bytes(b"\0" * _RESERVE_BYTES)

    def release(self) -> None:
        """Frees the kept room: for the record on a full disk, and when all is written."""
        self._reserve.unlink(missing_ok=True)

    def save(
        self,
        name: str,
        fingerprint: str,
        result: dict[str, Any],
        basis: dict[str, Any] | None = None,
    ) -> None:
        """``basis``: what the fingerprint was made of, in words, for `changed`."""
        content = {"fingerprint": fingerprint, "basis": basis or {}, "result": result}
        write(self.stages / f"{name}.json", content)

    def basis(self, name: str, fingerprint: str) -> dict[str, Any] | None:
        """What a stored result of another fingerprint was made with; None if there is no such."""
        try:
            content = json.loads((self.stages / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        if content.get("fingerprint") == fingerprint:
            return None
        found: dict[str, Any] = content.get("basis") or {}
        return found

    def load(self, name: str, fingerprint: str | None = None) -> dict[str, Any] | None:
        """A stage's result, or None if there is none, or not for this fingerprint."""
        try:
            content = json.loads((self.stages / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        if fingerprint is not None and content.get("fingerprint") != fingerprint:
            return None
        result: dict[str, Any] = content["result"]
        return result

    def forget(self, name: str) -> None:
        (self.stages / f"{name}.json").unlink(missing_ok=True)


def write(path: Path, content: Any) -> None:
    """Writes JSON or text so that a reader sees the old file or the new one, never half of it."""
    text = content if isinstance(content, str) else json.dumps(content, indent=1, allow_nan=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def fingerprint(*parts: Any) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
