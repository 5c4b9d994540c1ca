"""The ends of keys: one after the other, or several at once where several can be measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tunekit.fleet.runner import LeaseLost
from tunekit.runner import Runner, are_finals_due
from tunekit.trial import Distance
from tunekit.tuner.events import KeyDone, KeyFailed
from tunekit.tuner.key_search import KeySearch

Conclude = Callable[[KeySearch, KeyDone | KeyFailed], None]


class Finishing:
    """Finishes keys, and concludes each in the thread that runs the run."""

    def __init__(self, conclude: Conclude, runner: Runner, *, at_once: int | None) -> None:
        """`at_once` says how many keys may be finished at a time.

        None has the caller wait for each, when their finals are due.
        """
        self._conclude = conclude
        self._runner = runner
        self._held: deque[tuple[KeySearch, Distance | None]] = deque()
        self._threads = None if at_once is None else ThreadPoolExecutor(at_once, "tunekit-finals")
        self._pending: dict[Future[KeyDone | KeyFailed], KeySearch] = {}
        self._lost: list[KeySearch] = []

    def begin(self, key: KeySearch) -> None:
        """Finish a key. What the search says of it, it says now: later it knows more."""
        distance = key.distance()
        if self._threads is None:
            self._held.append((key, distance))
            self.settle()
        else:
            self._pending[self._threads.submit(key.finish, distance)] = key

    def settle(self) -> None:
        """Conclude the keys that are finished by now, or can be without anything waiting for it."""
        while are_finals_due(self._runner, len(self._held)):
            self._finish_held()
        for future in [future for future in self._pending if future.done()]:
            key = self._pending.pop(future)
            try:
                outcome = future.result()
            except LeaseLost:
                self._lost.append(key)
            else:
                self._conclude(key, outcome)

    def wait(self) -> list[KeySearch]:
        """Conclude all keys; return those that other runs took before they were finished."""
        while self._held:
            self._finish_held()
        while self._pending:
            wait(self._pending, return_when=FIRST_COMPLETED)
            self.settle()
        lost, self._lost = self._lost, []
        return lost

    def _finish_held(self) -> None:
        key, distance = self._held.popleft()
        self._conclude(key, key.finish(distance))

    def close(self) -> None:
        """Begin nothing more. What is being measured ends with the runner."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
