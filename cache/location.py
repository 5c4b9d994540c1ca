"""Where the cache is when nobody says."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from tunekit.errors import StoreError

_log = logging.getLogger(__name__)

FILE_NAME = "tunekit.db"


_SECRETS = (
    (re.compile(r"(://[^:/@]*):.*@"), r"\1:***@"),
    (re.compile(r"([?&][^=&]*password=)[^&]*", re.IGNORECASE), r"\1***"),
)
"""What hides a URL's passwords: the user's, and those among its options."""


def shown_location(location: str) -> str:
    """Return a path or URL as anybody may read it: without passwords."""
    if "://" not in location:
        return location
    for pattern, stars in _SECRETS:
        location = pattern.sub(stars, location)
    return location


def default_location() -> str:
    """Return `TUNEKIT_CACHE` (a path or a URL), else the file in the user's cache folder.

    Where there is no home that can be written, as in many containers, it is a folder of this user
    alone below the temporary one.

    What stands at a place that nobody named has to be this user's, or root's: another could have
    put it there. A place that somebody named is their choice.

    Raises:
        StoreError: the folder or the file belongs to someone else, or no folder can hold one.
    """
    named = os.environ.get("TUNEKIT_CACHE", "").strip()
    if named:
        return named
    folder = _user_folder()
    if folder is not None and (_holds(folder) or _can_hold(folder)):
        _check_owner(folder)
        _check_owner(folder / FILE_NAME)
        return str(folder / FILE_NAME)
    fallback = _fallback_folder()
    reason = "this user has no home" if folder is None else f"no cache can be made in {folder}"
    _log.warning("%s: using %s", reason, fallback)
    return str(fallback / FILE_NAME)


def _user_folder() -> Path | None:
    """Return the user's cache folder, or None for a user who has no home."""
    try:
        folder = user_cache_path("tunekit", appauthor=False)
    except RuntimeError:  # HOME is not set, and the user id has no entry in the password file
        return None
    return folder if folder.is_absolute() else None  # some versions leave "~" as it is


def _holds(folder: Path) -> bool:
    """Say whether there is a cache in a folder."""
    try:
        return (folder / FILE_NAME).exists()
    except OSError:  # a folder that may not be searched
        return False


def _check_owner(path: Path) -> None:
    """Refuse what another user owns, be it a link to something of this user's."""
    try:
        owners = {path.stat().st_uid, path.lstat().st_uid}
    except OSError:  # not there, or a link to nothing
        return
    owners -= {os.getuid(), 0}
    if owners:
        raise StoreError(
            f"{path} belongs to another user (number {owners.pop()}), so it is not trusted as the"
            " default cache: remove it, or set TUNEKIT_CACHE to it if you do trust it"
        )


def _can_hold(folder: Path) -> bool:
    """Say whether files can be made in a folder, once it is made."""
    for candidate in (folder, *folder.parents):
        try:
            if candidate.exists():
                return candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK)
        except OSError:  # a parent that may not be searched
            return False
    return False


def _fallback_folder() -> Path:
    """Return this user's folder below the temporary one, which everybody may write."""
    try:
        folder = Path(tempfile.gettempdir()) / f"tunekit-{os.getuid()}"
    except FileNotFoundError as error:
        raise StoreError("no folder can hold the cache: set TUNEKIT_CACHE to a path") from error
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise StoreError(f"cannot look at {folder}: {error.strerror}: set TUNEKIT_CACHE") from error
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o022:
        raise StoreError(
            f"{folder} is not a folder that only this user may write, so nothing in it can be"
            " trusted: remove it, or set TUNEKIT_CACHE to a path of your own"
        )
    return folder
