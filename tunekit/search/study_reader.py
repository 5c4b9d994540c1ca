"""What a study says of the configs of a space."""

from __future__ import annotations

import math

import optuna
from optuna.trial import FrozenTrial, TrialState

from tunekit.search.points import Points

FAILED = "failed"
"""The attribute of a study's trial whose config did not work."""

States = tuple[dict[int, float], frozenset[int]]


class StudyReader:
    """Reads a study again and again, which other processes may add to.

    What it says of a trial that has ended it will always say, so that is read once.
    """

    def __init__(self, points: Points) -> None:
        self._points = points
        self._ended = 0
        """So many trials, from the first and without a gap, have ended; what they say is kept."""
        self._kept: dict[int, float] = {}

    def read(self, study: optuna.Study) -> States:
        """Return the log times by config (infinite for a failure), and what is being tried."""
        trials = study.get_trials(deepcopy=False)  # by number
        while self._ended < len(trials) and self._is_next(trials[self._ended]):
            self._note(trials[self._ended], self._kept)
            self._ended += 1
        known, others = dict(self._kept), trials[self._ended :]
        for trial in others:
            self._note(trial, known)
        running = (self._points.find(t.params) for t in others if t.state is TrialState.RUNNING)
        return known, frozenset(index for index in running if index is not None) - known.keys()

    def _is_next(self, trial: FrozenTrial) -> bool:
        """Say whether a trial has ended and follows those that are kept.

        Of two that are added at the same time, a database may show the later one first.
        """
        return trial.state.is_finished() and trial.number == self._ended

    def _note(self, trial: FrozenTrial, known: dict[int, float]) -> None:
        index = self._points.find(trial.params)
        if index is not None and trial.state is TrialState.COMPLETE and trial.value is not None:
            known[index] = math.inf if trial.user_attrs.get(FAILED) else trial.value
