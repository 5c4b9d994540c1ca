"""Where a search begins when its cache is empty: the portfolio, a thinned recording that ships.

Of each recorded problem it holds the fastest configs, and as many spread over the others, so that
a forest can tell what is fast from what is not. `scripts/make_portfolio.py` makes it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from tunekit.ranking import ranked
from tunekit.recording import Recording
from tunekit.search.experience import Experience
from tunekit.search.forest import Grow
from tunekit.trial import Trial

PORTFOLIO = "portfolio"
"""What the portfolio's trials are said to be made with: the cache's own stand beside them."""

CONFIGS = 24
"""Configs of a problem in a portfolio."""


def portfolio_of(recording: Recording) -> Recording:
    """Return the part of a recording that a portfolio keeps: screening of a few configs."""
    thin = Recording(recording.device, recording.environment, dict(recording.sources))
    for problem, found in recording.problems.items():
        kept = _telling(ranked(found.screening.values()))
        screening = {trial.config: trial for trial in kept}
        thin.problems[problem] = replace(found, vendor=None, screening=screening, finals={})
    return thin


def shipped_portfolios() -> list[Path]:
    """Return the portfolios that come with tunekit, by name."""
    return sorted(Path(str(files("tunekit.search"))).glob("portfolio-*.json.gz"))


def shipped_experience(seed: int = 0, *, grow: Grow | None = None) -> Experience:
    """Return an experience that knows the shipped portfolios and nothing else.

    It has its forest already if `load_portfolios` was called before. Forests are grown by `grow`,
    if it is given.
    """
    known = _grown.pop((seed, grow), None)
    if known is None:
        known = Experience(seed=seed, grow=grow)
        for recording in _load():
            add_recording(known, recording)
    return known


def add_recording(known: Experience, recording: Recording, *, made_with: str = PORTFOLIO) -> None:
    """Add what was recorded to an experience."""
    for problem, found in recording.problems.items():
        known.note(problem, recording.device, found.screening.values(), made_with=made_with)


def load_portfolios(seed: int = 0, *, grow: Grow | None = None) -> None:
    """Read the shipped portfolios and grow their forest, for whoever waits for something else."""
    known = shipped_experience(seed, grow=grow)
    known.forest()
    _grown.clear()
    _grown[seed, grow] = known


_grown: dict[tuple[int, Grow | None], Experience] = {}
"""What was grown ahead last, for the first who asks: an experience is its run's own."""


@functools.cache
def _load() -> tuple[Recording, ...]:
    return tuple(map(Recording.load, shipped_portfolios()))


def _telling(order: list[Trial]) -> list[Trial]:
    """Return the fastest of trials that are sorted by time, and as many spread over the rest."""
    fast, rest = order[: CONFIGS // 2], order[CONFIGS // 2 :]
    count = min(len(rest), CONFIGS - len(fast))
    return fast + [rest[(2 * i + 1) * len(rest) // (2 * count)] for i in range(count)]
