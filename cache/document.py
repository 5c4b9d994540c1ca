"""The export file: one JSON document with a checksum over what it says.

    {"format": "tunekit-cache", "schema": 2, "devices": [...], "bests": [...],
     "baselines": [...], "trials": [...], "checksum": "sha256:..."}

A best holds its vendor measurement; `baselines` are the others, of earlier environments; `trials`
is there where every trial was asked for. `exchange.schema.json` says what each may hold.

A new `schema` only adds what the one before may ignore, so a reader of n reads n - 1 and n + 1. A
change that would be read wrongly raises it by two.

    1: the first
    2: a measurement may be marked `throttled`
    3: a best may have a `distance`
"""

from __future__ import annotations

import hashlib
import json
import logging
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunekit.cache.fields import whole
from tunekit.errors import ExchangeError

FORMAT = "tunekit-cache"
SCHEMA = 3
SECTIONS = ("devices", "bests", "baselines", "trials")

Sections = Mapping[str, list[Any]]
"""The rows of a file by section, unchecked. One that could not even be formed stands as the
`RefusedRowError` that says why."""

_log = logging.getLogger(__name__)


def write_document(sections: Sections) -> str:
    """Return the text of a file that holds these sections."""
    body = {"format": FORMAT, "schema": SCHEMA, **sections}
    return json.dumps({**body, "checksum": _checksum(body)}, indent=1, allow_nan=False) + "\n"


def read_document(text: str) -> Sections:
    """Return every section of a file, its rows unchecked.

    Raises:
        ExchangeError: the text is not a whole export file, or is one of a much newer tunekit.
    """
    return document_sections(parse_json(text))


def document_sections(body: Any) -> Sections:
    """Return every section of a parsed file, its rows unchecked.

    Raises:
        ExchangeError: it is no export file, was changed, or is one of a much newer tunekit.
    """
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ExchangeError("the file is JSON, but not an export of a tunekit cache")
    _check_schema(body.get("schema"))
    stated = body.get("checksum")
    if stated != _checksum({name: body[name] for name in body if name != "checksum"}):
        raise ExchangeError(
            "checksum: the file's contents are not what was exported, so it was damaged or edited:"
            " export it again"
        )
    sections = {name: body.get(name, []) for name in SECTIONS}
    for name, rows in sections.items():
        if not isinstance(rows, list):
            raise ExchangeError(f"{name}: expected a list, found {reprlib.repr(rows)}")
    return sections


def parse_json(text: str) -> Any:
    """Return what a JSON text says; an infinity may be there, as Python and Triton write it.

    Raises:
        ExchangeError: the text is not whole JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos == 0 and text:
            raise ExchangeError(
                "the file is not an export: it is neither JSON nor SQLite"
            ) from error
        raise ExchangeError(
            f"the file is not whole JSON (line {error.lineno}, column {error.colno}: {error.msg}):"
            " it was cut off or damaged: export it again"
        ) from error
    except RecursionError as error:
        raise ExchangeError("the file is nested too deeply to be an export") from error
    except ValueError as error:  # a whole number of thousands of digits
        raise ExchangeError(f"the file holds a number that cannot be read: {error}") from error


def exchange_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an export file."""
    text = Path(__file__).with_name("exchange.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _check_schema(stated: Any) -> None:
    schema = whole(stated)
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ExchangeError(f"schema: expected a whole number from 1, found {reprlib.repr(stated)}")
    if schema > SCHEMA + 1:
        raise ExchangeError(
            f"the file has schema {reprlib.repr(schema)}, and this tunekit reads up to"
            f" {SCHEMA + 1}: upgrade tunekit"
        )
    if schema > SCHEMA:
        _log.warning(
            "the file has schema %d, one newer than this tunekit's: what it adds is ignored", schema
        )


def _checksum(body: Mapping[str, Any]) -> str:
    """Hash what a document says, however it is laid out."""
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"the file holds what cannot be read: {error}") from error
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
