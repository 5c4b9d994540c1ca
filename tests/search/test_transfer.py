"""The sampler that learns from other problems."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import optuna
import pytest

from tunekit.search import Experience, Searcher
from tunekit.search.belief import Belief
from tunekit.search.points import Distances, Points
from tunekit.search.transfer import TransferSampler


def experienced(world, sizes=(256, 512, 2048, 4096), seed=0):
    known = Experience(trees=24, seed=seed)
    for m in sizes:
        known.note(world.problem(m), world.device, world.trials(world.problem(m)))
    return known


def searched(world, m, known, rounds=3, batch=4, seed=0):
    problem = world.problem(m)
    searcher = Searcher(world.space(problem), "transfer", experience=known, seed=seed)
    seen = []
    for _ in range(rounds):
        batch_now = searcher.ask(batch)
        for config in batch_now:
            searcher.tell(world.trial(problem, config))
        seen += batch_now
    return seen


def regret(world, m, configs):
    problem = world.problem(m)
    best = min(world.time_us(problem, c) for c in world.configs)
    return min(world.time_us(problem, c) for c in configs) / best - 1


def test_it_begins_where_other_problems_were_fast(world):
    first = searched(world, 384, experienced(world), rounds=1)
    assert regret(world, 384, first) <= 0.1


def test_it_finds_the_best_from_few_trials_of_its_own(world):
    assert regret(world, 384, searched(world, 384, experienced(world))) == 0
    assert regret(world, 3000, searched(world, 3000, experienced(world))) == 0


def test_its_own_trials_overrule_what_others_say(world):
    """Other problems were fast with large tiles; this one is not, and nobody said so."""
    known = experienced(world, (2048, 3072, 4096))
    assert regret(world, 300, searched(world, 300, known, rounds=5)) <= 0.1


def test_without_any_experience_it_covers_the_space_and_learns(world):
    seen = searched(world, 384, Experience(), rounds=8)
    assert len(set(seen)) == 32
    assert len({c.block_m * c.block_n for c in seen[:8]}) >= 4
    assert regret(world, 384, seen) <= 0.1


def test_two_keys_learn_from_each_other(world):
    known = Experience(trees=24)
    for m in (2048, 3072, 4096):
        searched(world, m, known, rounds=4)
    assert {p.m for p in known.problems} == {2048, 3072, 4096}
    known.settle()
    assert regret(world, 3500, searched(world, 3500, known, rounds=1)) <= 0.1


def test_the_order_in_which_keys_are_told_changes_nothing(world):
    """Two workers tell the trials of a round in another order than one does."""

    def run(order):
        known = experienced(world)
        problems = [world.problem(m) for m in (300, 700, 3000)]
        keys = [Searcher(world.space(p), "transfer", experience=known) for p in problems]
        proposed = []
        for _ in range(3):
            batches = [key.ask(4) for key in keys]
            proposed.append(batches)
            work = [(i, config) for i, batch in enumerate(batches) for config in batch]
            order.shuffle(work)
            for i, config in work:
                keys[i].tell(world.trial(problems[i], config))
            known.settle()
        return proposed

    assert run(random.Random(1)) == run(random.Random(2))


def test_a_key_is_told_nothing_new_of_others_before_it_is_settled(world):
    """Else proposals would depend on whose trials happened to end first."""

    def second(meanwhile):
        known = experienced(world)
        problem = world.problem(384)
        key = Searcher(world.space(problem), "transfer", experience=known)
        for config in key.ask(4):
            key.tell(world.trial(problem, config))
        other = world.problem(400)
        known.note(other, world.device, world.trials(other, world.configs[:meanwhile]))
        return key.ask(4)

    assert second(0) == second(len(world.configs))


def test_the_seed_decides_all_proposals(world):
    runs = [searched(world, 384, experienced(world, seed=s), seed=s, rounds=2) for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_it_works_as_a_plain_sampler_of_optuna(world):
    """Asked by Optuna itself, it proposes legal configs, each once."""
    problem = world.problem(384)
    space = world.space(problem)
    points = Points(space.configs)
    sampler = TransferSampler(space, points, experienced(world), seed=0)
    study = optuna.create_study(sampler=sampler)
    seen = []
    for _ in range(20):
        trial = study.ask(points.distributions)
        index = points.find(trial.params)
        assert index is not None
        study.tell(trial, np.log(world.time_us(problem, space.configs[index])))
        seen.append(index)
    assert len(set(seen)) == 20


def test_what_is_kept_of_a_space_follows_the_columns_of_the_forest(world):
    """A key that saw forests come and go believes what one that sees only the last believes."""
    problem = world.problem(384)
    space = world.space(problem)
    points, known = Points(space.configs), experienced(world)
    sampler = TransferSampler(space, points, known, seed=0)
    study = optuna.create_study(sampler=sampler)
    for switches in ((), (("eager", 1),), ()):
        other = world.problem(600 + len(switches))
        trials = world.trials(other)
        trials = [replace(t, config=replace(t.config, switches=switches)) for t in trials]
        known.note(other, world.device, trials)
        known.settle()
        fresh = TransferSampler(space, points, known, seed=0).belief(study)
        assert np.array_equal(sampler.belief(study).mean, fresh.mean)
        assert np.array_equal(sampler.belief(study).variance, fresh.variance)


def test_what_is_being_tried_is_not_proposed_again(world):
    searcher = Searcher(world.space(world.problem(384)), "transfer", experience=experienced(world))
    first, second = searcher.ask(10), searcher.ask(10)
    assert not set(first) & set(second)


def test_a_failure_teaches_to_keep_away(world):
    problem = world.problem(384)
    searcher = Searcher(world.space(problem), "transfer", experience=experienced(world))
    for _ in range(4):
        for config in searcher.ask(4):
            broken = config.block_m == 64
            searcher.tell(world.failed(config) if broken else world.trial(problem, config))
    assert sum(c.block_m == 64 for c in searcher.ask(4)) <= 1


def test_the_gain_expected_falls_as_the_best_is_found(world):
    problem = world.problem(384)
    searcher = Searcher(world.space(problem), "transfer", experience=experienced(world))
    gains = []
    for _ in range(6):
        for config in searcher.ask(6):
            searcher.tell(world.trial(problem, config))
        gains.append(searcher.expected_gain())
    assert 1 >= gains[0] > gains[-1] >= 0


def test_the_distance_from_the_best_is_nothing_when_all_is_tried(world):
    problem = world.problem(384)
    searcher = Searcher(world.space(problem), "transfer", experience=experienced(world))
    assert searcher.distance() is None
    bounds = []
    while searcher.remaining:
        for config in searcher.ask(3):
            searcher.tell(world.trial(problem, config))
        bounds.append(searcher.distance().bound)
    assert bounds[0] > bounds[-1] == 0
    assert Searcher(world.space(problem), "tpe").distance() is None


@pytest.mark.parametrize("sampler", ["tpe", "random", "exhaustive"])
def test_the_gain_expected_without_a_model_falls_with_the_trials(world, sampler):
    problem = world.problem(384)
    searcher = Searcher(world.space(problem), sampler)
    assert searcher.expected_gain() == 1.0
    gains = []
    while searcher.remaining:
        for config in searcher.ask(9):
            searcher.tell(world.trial(problem, config))
        gains.append(searcher.expected_gain())
    assert all(0 <= gain < 1 for gain in gains)
    assert gains[-1] == 0 < gains[0]


@pytest.mark.parametrize("count", [3, 70])  # of 70, there is no room for all at first
def test_a_belief_agrees_with_the_closed_form(count):
    """Conditioning one observation at a time is conditioning on all at once."""
    random_numbers = np.random.default_rng(0)
    size = 4 * count
    trees = random_numbers.normal(size=(10, size))
    places = Distances(random_numbers.normal(size=(size, 3)))
    seen = sorted(random_numbers.permutation(size)[:count])
    values = random_numbers.normal(size=count) / 5
    prior = Belief(trees, places)
    joint = np.array([prior.covariance(i) for i in range(size)])
    noisy = joint[np.ix_(seen, seen)] + 0.02**2 * np.eye(count)
    gain = np.linalg.solve(noisy, joint[seen])
    belief = Belief(trees, places)
    for index, value in zip(seen, values, strict=True):
        belief.observe(index, value)
    assert belief.mean == pytest.approx(trees.mean(0) + gain.T @ (values - trees.mean(0)[seen]))
    left = np.diag(joint) - (joint[seen] * gain).sum(0)
    assert belief.variance == pytest.approx(left, abs=1e-9)


def test_the_best_of_some_configs_is_drawn_from_their_joint_distribution():
    belief = Belief(None, Distances(np.arange(4.0)[:, None] * 100))
    for index, value in enumerate((0.0, 0.5, 0.5)):
        belief.observe(index, value)
    drawn = belief.lowest([0, 1, 2], draws=2000, seed=0)
    assert drawn.mean() == pytest.approx(0.0, abs=0.02)
    alone = belief.lowest([3], draws=4000, seed=0)
    assert alone.mean() == pytest.approx(float(belief.mean[3]), abs=0.03)
    assert alone.std() == pytest.approx(float(np.sqrt(belief.variance[3])), abs=0.03)
