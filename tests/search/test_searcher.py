"""The search: every proposal is legal and new, whatever it is told."""

from __future__ import annotations

import logging
import math
import statistics

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem
from tunekit.search import SAMPLERS, Experience, Searcher
from tunekit.space import Space
from tunekit.trial import Measurement, Status, Trial

PROBLEM = Problem("matmul", 512, 512, 512, "bfloat16")
GRID = tuple(
    Config(variant, m, n, k, group, 1, w, s, switches=switches)
    for variant, switches in (("pointer", ()), ("tma", (("halves", 1),)), ("tma", (("halves", 2),)))
    for m in (16, 64, 256)
    for n in (32, 64, 128)
    for k in (32, 64)
    for group in (1, 8)
    for w, s in ((4, 3), (8, 5))
)


QUICK = tuple(sampler for sampler in SAMPLERS if sampler != "gp")
"""`gp` takes a second for a proposal: it has tests of its own, and no more."""


def make(space, sampler="tpe", **how):
    """Make a searcher that knows nothing of other problems: `transfer` too starts from nothing."""
    return Searcher(space, sampler, experience=Experience(), **how)


def space_of(configs):
    return Space(PROBLEM, KNOWN_DEVICES["sm_90"], tuple(configs))


def ok(config, median):
    return Trial(config, Status.OK, Measurement(median, 1, 1, 1, 1, 1, 9, "fake-1"))


def failed(config):
    return Trial(config, Status.COMPILE_ERROR, error="boom")


def bowl(config):
    """Fall smoothly to one best config."""
    x = abs(math.log2(config.block_m / 64)) + abs(math.log2(config.block_n / 128))
    x += 0.5 * abs(config.num_stages - 5) + 0.3 * (config.group_size == 1)
    return 10 * (1 + x + (config.variant != "tma") + config.switch("halves") / 10)


def search(searcher, answer, trials, batch=8):
    seen = []
    while len(seen) < trials:
        batch_now = searcher.ask(min(batch, trials - len(seen)))
        if not batch_now:
            break
        for config in batch_now:
            searcher.tell(answer(config))
        seen += batch_now
    return seen


@given(
    sampler=st.sampled_from(QUICK),
    chosen=st.sets(st.integers(0, len(GRID) - 1), min_size=1, max_size=40),
    seed=st.integers(0, 2**32 - 1),
    trials=st.none() | st.integers(1, 60),
    batch=st.integers(1, 9),
    results=st.lists(st.none() | st.floats(allow_nan=True), min_size=1, max_size=8),
)
def test_proposals_are_legal_new_and_come_to_an_end(sampler, chosen, seed, trials, batch, results):
    configs = [GRID[i] for i in sorted(chosen)]
    searcher = make(space_of(configs), sampler, seed=seed, trials=trials)

    def answer(config):
        result = results[configs.index(config) % len(results)]
        return failed(config) if result is None else ok(config, result)

    seen = search(searcher, answer, 10**6, batch)
    assert sorted(seen) == sorted(configs)
    assert searcher.remaining == 0
    assert searcher.ask(3) == []


@pytest.mark.parametrize("sampler", QUICK)
def test_the_seed_decides(sampler):
    def run(seed):
        searcher = make(space_of(GRID), sampler, seed=seed, trials=40)
        return search(searcher, lambda c: ok(c, bowl(c)), 40)

    assert run(3) == run(3) != run(4)


def test_the_study_records_what_is_run():
    searcher = Searcher(space_of(GRID), "tpe", trials=40)
    seen = search(searcher, lambda c: ok(c, bowl(c)), 40)
    recorded = searcher.study.trials
    for config, trial in zip(seen, recorded, strict=True):
        assert trial.params["block_m"] == config.block_m
        assert trial.params["variant"] == config.variant
        assert trial.params["halves"] == config.switch("halves")
        assert trial.value == pytest.approx(math.log(bowl(config)))
    assert {"block_n", "block_k", "group_size", "split_k", "num_warps"} <= set(recorded[0].params)
    assert len({tuple(trial.distributions.items()) for trial in recorded}) == 1


def test_the_study_is_named_by_key_and_space():
    whole, part = space_of(GRID), space_of(GRID[1:])
    name = make(whole).study.study_name
    assert name.startswith("matmul/512x512x512 bfloat16 nt on nvidia-h200-sm90-132/")
    assert name != make(part).study.study_name


def test_tpe_beats_random_on_a_smooth_landscape():
    def regret(sampler):
        lows = []
        for seed in range(8):
            searcher = make(space_of(GRID), sampler, seed=seed, trials=40)
            seen = search(searcher, lambda c: ok(c, bowl(c)), 40)
            lows.append(min(map(bowl, seen)))
        return statistics.mean(lows)

    assert regret("tpe") < regret("random")


def test_gp_proposes_what_is_legal_and_new_and_learns():
    prior = [ok(c, bowl(c)) for c in GRID[::9]]
    proposed = make(space_of(GRID), "gp", prior=prior).ask(2)
    assert len(set(proposed)) == 2
    assert set(proposed) <= set(GRID) - set(GRID[::9])
    assert statistics.mean(map(bowl, proposed)) < statistics.mean(map(bowl, GRID))


def test_transfer_starts_from_the_shipped_portfolio():
    """The portfolio knows nothing of these configs by name, yet says which tiles are good."""
    searcher = Searcher(space_of(GRID), trials=40)
    first = searcher.ask(8)
    assert len(set(first)) == 8
    assert first != make(space_of(GRID), "transfer", trials=40).ask(8)


def test_the_first_proposals_cover_variants_and_tile_areas():
    first = Searcher(space_of(GRID), "tpe", trials=40).ask(8)
    assert [c.variant for c in first].count("tma") == 4
    areas = {c.block_m * c.block_n for c in GRID}
    assert len({c.block_m * c.block_n for c in first}) >= len(areas) - 2


def test_failures_are_told_as_worse_than_what_worked():
    searcher = Searcher(space_of(GRID), "tpe", trials=40)
    configs = searcher.ask(5)
    for trial in (failed(configs[0]), ok(configs[1], 50.0), ok(configs[2], math.nan)):
        searcher.tell(trial)
    searcher.tell(ok(configs[3], math.inf))
    searcher.tell(failed(configs[4]))
    values = [trial.value for trial in searcher.study.trials]
    assert all(math.isfinite(value) for value in values)
    assert min(values) == values[1] == searcher.study.best_value
    states = {trial.state for trial in searcher.study.trials}
    assert states == {optuna.trial.TrialState.COMPLETE}


def test_a_start_of_failures_alone_is_no_end():
    searcher = Searcher(space_of(GRID), "tpe", trials=100)
    seen = search(searcher, failed, 40)
    assert len(set(seen)) == 40
    last = search(searcher, lambda c: ok(c, bowl(c)), 40)
    assert len(set(seen + last)) == 80


@pytest.mark.parametrize("sampler", QUICK)
def test_a_space_of_one_config(sampler):
    searcher = make(space_of(GRID[:1]), sampler)
    assert searcher.ask(8) == [GRID[0]]
    assert searcher.ask(8) == []
    searcher.tell(failed(GRID[0]))


@pytest.mark.parametrize("sampler", QUICK)
def test_prior_trials_are_not_proposed_again(sampler):
    prior = [ok(c, bowl(c)) for c in GRID[::2]] + [failed(GRID[1])]
    stranger = Config("pointer", 512, 512, 32)
    searcher = make(space_of(GRID), sampler, prior=[*prior, ok(stranger, 1.0), prior[0]])
    assert len(searcher.study.trials) == len(prior)
    rest = search(searcher, lambda c: ok(c, bowl(c)), 10**6)
    assert sorted(rest) == sorted(set(GRID) - {trial.config for trial in prior})


def test_prior_trials_inform_the_first_proposal():
    prior = [ok(c, bowl(c)) for c in GRID if c.block_m != 64]
    best_first = Searcher(space_of(GRID), "tpe", prior=prior).ask(8)
    assert statistics.mean(map(bowl, best_first)) < statistics.mean(map(bowl, GRID))


def test_telling_a_config_again_changes_nothing():
    searcher = Searcher(space_of(GRID), "tpe", trials=40)
    (config,) = searcher.ask(1)
    searcher.tell(ok(config, 5.0))
    searcher.tell(ok(config, 4.0))
    assert [trial.value for trial in searcher.study.trials] == [math.log(5.0)]


def test_a_small_space_is_swept_by_any_sampler():
    space = space_of(GRID[:30])
    sweeps = {tuple(make(space, s, trials=30, seed=1).ask(30)) for s in SAMPLERS}
    assert len(sweeps) == 1


def test_an_unknown_sampler_is_refused():
    with pytest.raises(ValueError, match="use one of"):
        Searcher(space_of(GRID), "luck")


def test_optuna_is_silent_and_its_level_left_alone(capfd):
    optuna.logging.set_verbosity(logging.INFO)
    try:
        search(Searcher(space_of(GRID), "tpe", trials=40), lambda c: ok(c, bowl(c)), 40)
        assert optuna.logging.get_verbosity() == logging.INFO
    finally:
        optuna.logging.set_verbosity(logging.INFO)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
