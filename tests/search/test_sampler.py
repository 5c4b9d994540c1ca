"""Which config a proposal becomes, and which cover a space."""

from __future__ import annotations

import numpy as np
import pytest

from tunekit.search.points import Points
from tunekit.search.sampler import Coverage, SpaceSampler


@pytest.fixture
def points(world):
    return Points(world.configs)


def test_a_config_is_nearest_to_itself(points):
    for index in range(len(points.configs)):
        distances = points.distances_from(points.params(index))
        assert int(np.argmin(distances)) == index
        assert sorted(distances)[1] > 0
        assert np.array_equal(distances, points.distances.of(index))


class Proposing:
    """An inner sampler that always proposes the same."""

    def __init__(self, params):
        self.params = params

    def sample_relative(self, study, trial, search_space):
        return self.params


def test_a_proposal_that_is_free_is_taken_and_then_its_neighbours(points):
    inner = Proposing(points.params(20))
    sampler = SpaceSampler(points, inner, seed=0, startup=0, spread=True)
    taken = []
    for _ in range(5):
        sampler.before_trial(None, None)
        taken.append(sampler.taken)
    gaps = points.distances.of(20)
    assert taken[0] == 20
    assert [gaps[i] for i in taken] == sorted(gaps)[:5]


def test_the_next_to_cover_is_the_furthest_of_its_group_whenever_asked(points):
    free, taken = np.ones(len(points.configs), dtype=bool), (5, 17, 30, 41)
    often, once = (Coverage(points, np.random.default_rng(0)) for _ in range(2))
    for index in taken:
        often.add(index)
        once.add(index)
        free[index] = False
        often.next(free)
    found = once.next(free)
    assert often.next(free) == found
    gaps = np.min([points.distances.of(index) for index in taken], axis=0)
    group = free & (points.strata() == points.strata()[found]).all(axis=1)
    assert gaps[group].min() < gaps[found] == gaps[group].max()


def test_distances_that_are_kept_cannot_be_changed(points):
    with pytest.raises(ValueError, match="read-only"):
        points.distances.of(3)[0] = 1.0
