"""Reading a record back: refused when it is newer than this tool, or no record."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from neuron_readiness.record.assemble import SCHEMA, SCHEMA_VERSION


class RecordError(ValueError):
    """A file that is not a usable record."""


class NewerSchema(RecordError):
    """A record of a later version of this tool."""


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of record.json."""
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def validate(record: dict[str, Any]) -> None:
    """Raises RecordError with the place of the first violation."""
    import jsonschema

    try:
        jsonschema.validate(record, schema())
    except jsonschema.ValidationError as error:
        place = "/".join(map(str, error.absolute_path)) or "the record"
        raise RecordError(f"{place}: {error.message}") from None


def read(path: Path) -> dict[str, Any]:
    """A validated record, from its file or its folder.

    Raises:
        NewerSchema: its schema version is above this tool's.
        RecordError: anything else that makes it unusable.
    """
    if not path.exists():
        raise RecordError(
            f"{path} does not exist; expected record.json or the folder that holds it"
        )
    path = path / "record.json" if path.is_dir() else path
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f'{path}: expected "schema": "{SCHEMA}"; this is no record')
    version = record.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{path}: schema version {version}; this tool reads up to {SCHEMA_VERSION}. Use the "
            f"tool that wrote it ({record.get('tool_version')}) or a newer one."
        )
    validate(record)
    return record
