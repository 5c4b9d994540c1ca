"""The trials that a run still may have, and what its keys may propose next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunekit.key import TuningKey
from tunekit.trial import Best
from tunekit.tuner.allocation import Standing, grants, is_settled, left_to_run
from tunekit.tuner.key_search import KeySearch


class Dealer:
    """Deals out the trials of a run. All methods are for the thread that runs it."""

    def __init__(self) -> None:
        self._left = 0
        self._granted: dict[KeySearch, int] = {}
        self._rows: dict[KeySearch, Best] = {}
        self._done: list[Standing] = []

    def done_before(
        self, keys: Sequence[KeySearch], stored: Collection[TuningKey]
    ) -> dict[KeySearch, Best]:
        """Return the keys that need no more trials, with their rows. Those `stored` have one.

        They have as many as they bring, or at least their floors and what they lack is what other
        keys of the run have beyond theirs.
        """
        asked = [key for key in keys if key.key in stored]
        rows = {key: row for key in asked if (row := key.row()) is not None}
        now = {key: key.row_standing(rows[key]) if key in rows else key.standing() for key in keys}
        partly = [key for key in rows if now[key].given]
        settled = is_settled([now[key] for key in partly], list(now.values()))
        done = {
            key: row
            for key, row in rows.items()
            if now[key].trials >= now[key].target or (settled and key in partly)
        }
        self._rows = rows
        self._done = [now[key] for key in done]
        return done

    def done_meanwhile(self, key: KeySearch) -> Best | None:
        """Return the row that another run has made of a key since this one began, if it has."""
        row = key.row()
        if row is None or row == self._rows.get(key):
            return None
        standing = key.row_standing(row)
        return row if standing.trials >= standing.floor else None

    def begin(self, keys: Sequence[KeySearch]) -> None:
        """Begin with keys: they have what they bring and do not have yet."""
        self._left = left_to_run([*self._done, *(key.standing() for key in keys)])
        self._done = []
        self._granted.clear()
        self.grant(keys)

    def lose(self, key: KeySearch) -> None:
        """Give up a key, with what it has not had of its own."""
        standing = key.standing()
        self._left -= max(0, standing.target - standing.trials)
        self._granted.pop(key, None)

    def grant(self, keys: Sequence[KeySearch]) -> None:
        """Deal out the trials of the next round, from what is known of all keys now.

        It is done before a round for the one after it: so a key proposes as soon as its own batch
        is tried, and what it may propose does not depend on which key that happened to be first.
        """
        going = [key for key in keys if not key.finished and not key.closed]
        dealt = grants([key.standing() for key in going], self._left)
        for key, count in zip(going, dealt, strict=True):
            key.closed = count is None
            self._granted[key] = count or 0

    def take(self, key: KeySearch) -> int:
        """Return how many configs a key may propose now; it may have them once."""
        count = self._granted.pop(key, 0)
        self._left -= count
        return count
