"""The export file: one JSON document with a checksum over what it says.

    {"format": "tunekit-cache", "schema": 1, "devices": [...], "bests": [...],
     "baselines": [...], "trials": [...], "checksum": "sha256:..."}

`schema` rises when a reader of the number before would read the file wrongly. A field that may be
ignored is added without. A best holds its vendor measurement; `baselines` are the others, of
earlier environments; `trials` is there where every trial was asked for.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from typing import Any

from tunekit.errors import ExchangeError

FORMAT = "tunekit-cache"
SCHEMA = 1
SECTIONS = ("devices", "bests", "baselines", "trials")


def write_document(sections: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the text of a file that holds these sections."""
    body = {"format": FORMAT, "schema": SCHEMA, **sections}
    return json.dumps({**body, "checksum": _checksum(body)}, indent=1, allow_nan=False) + "\n"


def read_document(text: str) -> dict[str, list[Any]]:
    """Return every section of a file, its rows unchecked.

    Raises:
        ExchangeError: the text is not a whole export file, or is one of a newer tunekit.
    """
    body = _parse(text)
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ExchangeError("the file is JSON, but not an export of a tunekit cache")
    schema = body.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise ExchangeError(f"schema: expected a whole number from 1, found {reprlib.repr(schema)}")
    if schema > SCHEMA:
        raise ExchangeError(
            f"the file has schema {schema}, newer than this tunekit's {SCHEMA}: upgrade tunekit"
        )
    stated = body.pop("checksum", None)
    if stated != _checksum(body):
        raise ExchangeError(
            "checksum: the file's contents are not what was exported, so it was damaged or edited:"
            " export it again"
        )
    sections = {name: body.get(name, []) for name in SECTIONS}
    for name, rows in sections.items():
        if not isinstance(rows, list):
            raise ExchangeError(f"{name}: expected a list, found {reprlib.repr(rows)}")
    return sections


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ExchangeError(
            f"the file is not whole JSON (line {error.lineno}, column {error.colno}: {error.msg}):"
            " it was cut off or damaged: export it again"
        ) from error
    except RecursionError as error:
        raise ExchangeError("the file is nested too deeply to be an export") from error
    except ValueError as error:  # a whole number of thousands of digits
        raise ExchangeError(f"the file holds a number that cannot be read: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ExchangeError(f"the file holds {name}, which is no JSON number")


def _checksum(body: Mapping[str, Any]) -> str:
    """Hash what a document says, however it is laid out."""
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"the file holds what cannot be read: {error}") from error
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
