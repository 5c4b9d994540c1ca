"""Where the cache is when nobody says."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from tunekit.errors import StoreError

_log = logging.getLogger(__name__)

FILE_NAME = "tunekit.db"


def default_location() -> str:
    """Return `TUNEKIT_CACHE` (a path or a URL), else the file in the user's cache folder.

    Where there is no home that can be written, as in many containers, it is a folder of this user
    alone below the temporary one.

    Raises:
        StoreError: that last folder belongs to someone else.
    """
    named = os.environ.get("TUNEKIT_CACHE", "").strip()
    if named:
        return named
    folder = user_cache_path("tunekit", appauthor=False)
    # A user id without an entry in the password file leaves "~" as it is.
    if folder.is_absolute() and ((folder / FILE_NAME).exists() or _can_hold(folder)):
        return str(folder / FILE_NAME)
    fallback = _fallback_folder()
    _log.warning("no cache folder can be made at %s: using %s", folder, fallback)
    return str(fallback / FILE_NAME)


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
    folder = Path(tempfile.gettempdir()) / f"tunekit-{os.getuid()}"
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
