"""Which of several trials is the better one: one rule for the search and for the final choice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tunekit.config import Config
from tunekit.trial import Measurement, Status, Trial, choose


def score(trial: Trial) -> float | None:
    """Return what is minimised, log(median_us), or None for a trial that can never be the best."""
    if trial.measurement is None or trial.status is not Status.OK:
        return None
    median = trial.measurement.median_us
    return math.log(median) if math.isfinite(median) and median > 0 else None


def is_sound(measurement: Measurement) -> bool:
    """Say whether every time of a measurement is a number above 0."""
    times = (
        measurement.median_us,
        measurement.low_us,
        measurement.high_us,
        measurement.p20_us,
        measurement.p80_us,
        measurement.min_us,
    )
    return all(math.isfinite(time) and time > 0 for time in times)


def sound(trial: Trial) -> Trial:
    """Return the trial, as a failed one if what was measured is not a time."""
    if trial.measurement is None or is_sound(trial.measurement):
        return trial
    text = f"a time of {trial.measurement.median_us} us was measured"
    return Trial(trial.config, Status.LAUNCH_ERROR, error=text)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that worked, fastest first; configs order equal ones."""
    scored = [(value, t) for t in trials if (value := score(t)) is not None]
    return [trial for _, trial in sorted(scored, key=lambda pair: (pair[0], pair[1].config))]


FINALISTS = (5, 64)
"""The least and the most that are measured again; of many a short heat leaves a few."""

NEAR_RATIO = 1.25
"""Screening cannot be trusted to tell configs apart that are closer: it timed them one after the
other, on a card that was cooler or hotter."""

TIE_RATIO = 1.01
"""However wide the intervals are, a tie never costs more than this."""


def contenders(order: Sequence[Trial]) -> int:
    """Return how many trials, fastest first, are to be measured again: more if many are near."""
    least, most = FINALISTS
    if not order:
        return 0
    bound = NEAR_RATIO * _measured(order[0]).median_us
    near = sum(_measured(trial).median_us <= bound for trial in order[:most])
    return min(max(least, near), len(order))


def pick(finals: Sequence[Trial], vendor: Measurement | None) -> Trial | None:
    """Choose among trials measured together, or None if none of them worked.

    Those that were beaten on the way, and so were in fewer rounds than the vendor's call, are out.
    The lowest median wins. Those within a percent whose interval reaches down to the winner's are
    tied with it, and of these the cheapest wins, unless the vendor's call would beat it and not the
    fastest one.
    """
    order = ranked(finals)
    if not order:
        return None
    if vendor is not None:
        stayed = [t for t in order if _measured(t).repetitions == vendor.repetitions]
        order = stayed or order  # a replay may have to answer with screenings
    fastest = _measured(order[0])
    tied = [
        trial
        for trial in order
        if _measured(trial).low_us <= fastest.high_us
        and _measured(trial).median_us <= TIE_RATIO * fastest.median_us
        and choose(_measured(trial), vendor) is choose(fastest, vendor)
    ]
    return min(tied or order[:1], key=lambda trial: cost(trial.config))


def cost(config: Config) -> int:
    """Return what a config takes of the machine: warps x stages x elements of its two tiles."""
    tiles = (config.block_m + config.block_n) * config.block_k
    return config.num_warps * config.num_stages * tiles


def most_common_error(trials: Iterable[Trial]) -> str:
    """Say in one line how most of the failed trials failed, and how many."""
    failures = [t for t in trials if t.status is not Status.OK]
    if not failures:
        return "nothing was tried"
    reason, count = Counter(map(_reason, failures)).most_common(1)[0]
    return f"{reason} ({count} of {len(failures)})"


def _reason(trial: Trial) -> str:
    first = (trial.error or "").strip().split("\n", 1)[0]
    return f"{trial.status.value}: {first}" if first else trial.status.value


def _measured(trial: Trial) -> Measurement:
    assert trial.measurement is not None
    return trial.measurement
