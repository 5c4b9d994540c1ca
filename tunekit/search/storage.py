"""Where Optuna's studies are kept beside the cache, for optuna-dashboard and for other programs.

The cache stays the truth: nothing is served from a study, and losing one loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage as StudyStorage
from optuna.storages import JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend

from tunekit.cache import shown_location
from tunekit.cache.engine import SQL_ERRORS
from tunekit.errors import TuneError

JOURNAL = "journal:"

_IN_MEMORY = re.compile(r"sqlite(\+\w+)?://(/?(\?.*)?|.*(:memory:|[?&]mode=memory).*)")
"""URLs of SQLite that name no file: what is kept there ends with the run."""

_FAILURES = (StorageInternalError, OSError, *SQL_ERRORS)
_REFUSALS = (ImportError, RuntimeError, ValueError)

__all__ = ["JOURNAL", "StudyStorage", "open_storage", "told_plainly"]


def open_storage(url: str) -> StudyStorage:
    """Open a database by its SQLAlchemy URL, or with `journal:FILE` a file of Optuna's journal.

    Raises:
        TuneError: it cannot be opened, or another version of Optuna made it.
    """
    with told_plainly(url, opening=True):
        if url.startswith(JOURNAL):
            return JournalStorage(JournalFileBackend(url[len(JOURNAL) :]))
        if "://" not in url:
            raise ValueError(f"it is neither a URL nor {JOURNAL}FILE")
        if _IN_MEMORY.fullmatch(url):
            raise ValueError("it names no file: use sqlite:///FILE")
        return get_storage(url)


@contextmanager
def told_plainly(where: StudyStorage | str | None, *, opening: bool = False) -> Iterator[None]:
    """Turn what a storage raises into one line. A study in memory has none: its errors are ours.

    On opening, a database that another Optuna made is refused with a bare RuntimeError, a URL
    without its driver with an ImportError. Later such errors would be ours.
    """
    expected = (*_FAILURES, *_REFUSALS) if opening else _FAILURES
    if where is None:
        yield
        return
    try:
        yield
    except expected as e:
        # Optuna's own words for any failed commit are the same; its cause says what was wrong.
        cause = e.__cause__ if isinstance(e, StorageInternalError) and e.__cause__ else e
        reason = str(cause).strip().split("\n", 1)[0]
        name = shown_location(where) if isinstance(where, str) else "their storage"
        raise TuneError(
            f"cannot keep Optuna's studies in {name}: {reason};"
            f" name another --optuna-storage (this is Optuna {optuna.__version__})"
        ) from e
