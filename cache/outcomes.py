"""What came of the trials of many keys, in brief: a report reads hundreds of thousands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from tunekit.cache.queries import EVERYWHERE, KEY_END, OUTCOMES, PLACES, Where, select_rows
from tunekit.cache.reading import readable, uncollected
from tunekit.cache.rows import DamagedRowError, read_config, read_key, read_status
from tunekit.key import TuningKey
from tunekit.trial import Outcome, Status


def find_places(
    connection: Connection, where: Where = EVERYWHERE
) -> dict[tuple[Any, ...], TuningKey]:
    """Return the keys that have trials by the ids of their problem and device, in that order."""

    def read(row: Sequence[Any]) -> tuple[tuple[Any, ...], TuningKey]:
        return tuple(row[KEY_END:]), read_key(row[:KEY_END])

    return dict(sorted(readable("trial", select_rows(connection, PLACES, where), read)))


def find_outcomes(
    connection: Connection, where: Where
) -> dict[tuple[Any, ...], list[tuple[str, Outcome]]]:
    """Return trials in brief with their compilers, by the ids of problem and device, in order."""
    found: dict[tuple[Any, ...], list[tuple[str, Outcome]]] = {}

    def read(row: Sequence[Any]) -> None:
        problem, device, compiler, status_name, text, median_us, error = row
        if not isinstance(compiler, str):
            raise DamagedRowError(f"the compiler {compiler!r:.80}")
        status, config = read_status(status_name, error), read_config(text)
        if status is not Status.OK:
            median_us = None
        elif type(median_us) is not float or not 0 < median_us < math.inf:
            raise DamagedRowError(f"the time {median_us!r:.80}")
        outcome = Outcome(config, status, median_us, error)
        found.setdefault((problem, device), []).append((compiler, outcome))

    with uncollected():
        readable("trial", select_rows(connection, OUTCOMES, where), read)
    return found
