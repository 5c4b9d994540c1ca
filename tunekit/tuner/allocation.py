"""How a run's trials are dealt out among its keys: half to each alike, half to where the time is.

A budget of trials is one of the run: so many for each key on average. Every key has half of its
own, or as many as the budget says, its floor. When all have reached it, what is left goes to the
keys where a trial is expected to save the program the most time: by the model of the search, by
`count` and by time. So a key that is run often and still gains has more trials than it brought, and
one that has nothing more to gain is ended early. All counts come from the trials of the store, so a
run that was interrupted ends with as many as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BATCH = 8
"""Configs a key proposes in a round, at least."""

LARGEST_BATCH = 16
FEWEST_ROUNDS = 5
"""A key that brings enough trials for so many rounds of larger batches proposes those: between
small rounds the compilers of many workers would be idle. It does not depend on the workers, for a
run is to have the same trials with any number of them."""

MOST_BATCHES = 8
"""A key that is to have many more trials proposes more at once, up to so many batches: else the
compilers would wait for it alone."""

PARTS = 4
"""It proposes its share in about so many rounds, so that it learns in between."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a key has, and what one more trial of it is worth."""

    tried: int
    trials: int
    """Configs tried, or proposed and about to be."""
    target: int
    """The trials it brings to the run's budget."""
    floor: int
    """Those of them that no other key can take from it."""
    space: int
    """The most it can have."""
    worth: float | None = None
    """The time a trial is expected to save the program, or None if no config has worked yet."""
    batch: int = BATCH
    """Configs it proposes in a round."""

    @property
    def given(self) -> int:
        """Trials it may have left to other keys."""
        return max(0, self.target - self.trials) if self.trials >= self.floor else 0


def left_to_run(standings: Sequence[Standing]) -> int:
    """Return how many trials all keys of a run are still to have together.

    What a key has above its target counts as taken from those that stopped between floor and
    target, as far as there are such: the rest was another run's.
    """
    missing = sum(max(0, standing.target - standing.trials) for standing in standings)
    beyond = sum(max(0, standing.trials - standing.target) for standing in standings)
    return missing - min(beyond, sum(standing.given for standing in standings))


def is_settled(results: Sequence[Standing], standings: Sequence[Standing]) -> bool:
    """Say whether keys with `results` lack no more trials than others of the run have taken."""
    beyond = sum(max(0, standing.trials - standing.target) for standing in standings)
    return sum(standing.given for standing in results) <= beyond


def batch_for(target: int) -> int:
    """Return how many configs a key that brings so many trials proposes in a round."""
    return max(BATCH, min(LARGEST_BATCH, target // FEWEST_ROUNDS))


def grants(standings: Sequence[Standing], left: int) -> list[int | None]:
    """Return how many configs each key proposes next, `left` being what all may have together.

    0 is to wait, for floors of others or for first results; None is the end of the key.
    """
    missing = [max(0, s.floor - s.trials) for s in standings]
    if any(missing):
        return [min(s.batch, count) for s, count in zip(standings, missing, strict=True)]
    if not all(s.tried for s in standings):
        return [0] * len(
            standings
        )  # a round without proposals, for the sake of a choice that knows
    room = [max(0, s.space - s.trials) for s in standings]
    shares = deal(max(0, left), weights([s.worth for s in standings]), room)
    return [_pace(share, s.batch) or None for share, s in zip(shares, standings, strict=True)]


def _pace(share: int, batch: int) -> int:
    if share < 2 * batch:
        return share
    return max(batch, min(MOST_BATCHES * BATCH, share // PARTS))


def weights(worths: Sequence[float | None]) -> list[float]:
    """Return what shares go by: a key where nothing works yet counts as an average one."""
    known = [worth for worth in worths if worth is not None]
    mean = sum(known) / len(known) if known else 1.0
    if mean <= 0:  # nothing more is to be gained anywhere: all alike
        return [1.0] * len(worths)
    return [mean if worth is None else worth for worth in worths]


def deal(count: int, weights: Sequence[float], room: Sequence[int]) -> list[int]:
    """Divide a count in proportion to weights, nobody getting more than there is room for."""
    shares = [0] * len(room)
    while True:
        takers = [i for i, space in enumerate(room) if shares[i] < space and weights[i] > 0]
        if count <= 0 or not takers:
            return shares
        whole = sum(weights[i] for i in takers)
        exact = {i: count * (weights[i] / whole) for i in takers}
        over = [i for i in takers if shares[i] + exact[i] >= room[i]]
        if not over:
            low = {i: math.floor(exact[i]) for i in takers}
            by_rest = sorted(takers, key=lambda i: (low[i] - exact[i], i))
            for place, i in enumerate(by_rest):
                shares[i] += low[i] + (place < count - sum(low.values()))
            return shares
        for i in over:
            count -= room[i] - shares[i]
            shares[i] = room[i]
