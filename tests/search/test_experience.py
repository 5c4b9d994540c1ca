"""What counts as experience, and the forest that is grown on it."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tunekit.config import Config
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.search import Experience, shipped_experience
from tunekit.search.experience import WORST, believable_us, slowdowns_of
from tunekit.search.features import ConfigTable, features, roofline_us
from tunekit.search.forest import Columns, Forest
from tunekit.search.portfolio import CONFIGS as PORTFOLIO_CONFIGS
from tunekit.search.portfolio import portfolio_of, shipped_portfolios
from tunekit.trial import Status

SIZES = (256, 512, 2048, 4096)


def learned(world, sizes=SIZES, change=lambda problem, trials: trials, trees=24, grow=None):
    known = Experience(trees=trees, grow=grow)
    for m in sizes:
        problem = world.problem(m)
        known.note(problem, world.device, change(problem, world.trials(problem)))
    return known


def predicted(known, world, m=384):
    known.settle()
    return known.forest().predict(world.problem(m), world.device, world.configs).mean(axis=0)


def true_order(world, m=384):
    times = [world.time_us(world.problem(m), c) for c in world.configs]
    return np.argsort(times)


def misled(world, known, m=384):
    """Return how much slower than the best the config is that the forest thinks fastest."""
    times = np.array([world.time_us(world.problem(m), c) for c in world.configs])
    return times[np.argmin(predicted(known, world, m))] / times.min() - 1


def test_a_forest_ranks_the_configs_of_a_problem_it_never_saw(world):
    known = learned(world)
    assert misled(world, known) <= 0.1
    assert misled(world, known, 3000) <= 0.1
    best = true_order(world)[:5]
    assert predicted(known, world)[best].mean() < 0.5 * predicted(known, world).mean()


def test_the_order_in_which_trials_come_changes_nothing(world):
    forward, backward = Experience(trees=16), Experience(trees=16)
    problems = [world.problem(m) for m in (256, 512, 2048)]
    for problem in problems:
        forward.note(problem, world.device, world.trials(problem))
    for problem in reversed(problems):
        for trial in reversed(world.trials(problem)):
            backward.note(problem, world.device, [trial])
    assert np.array_equal(predicted(forward, world), predicted(backward, world))


def test_the_seed_decides_the_forest(world):
    def grown(seed):
        known = Experience(seed=seed, trees=16)
        known.note(world.problem(256), world.device, world.trials(world.problem(256)))
        return predicted(known, world)

    assert np.array_equal(grown(1), grown(1))
    assert not np.array_equal(grown(1), grown(2))


@pytest.mark.parametrize(
    "changes",
    [
        {"error_ratio": None},
        {"error_ratio": 1.5},
        {"contended": True},
        {"median_us": math.nan},
        {"median_us": math.inf},
        {"median_us": 1e-3},
    ],
)
def test_what_was_not_verified_or_cannot_be_does_not_count(world, changes):
    problem = world.problem(2048)
    trial = world.trial(problem, world.configs[0], **changes)
    assert believable_us(trial, problem, world.device) is None


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_a_failure_counts_where_the_config_is_to_blame(world, status):
    found = believable_us(world.failed(world.configs[0], status), world.problem(64), world.device)
    own = {"compile-error", "out-of-resources", "wrong-result", "not-repeatable"}
    assert found == (math.inf if status.value in own else None)


def test_an_impossibly_fast_trial_does_not_fool_the_forest(world):
    """One trial that took no time would make everything else equally slow."""

    def spoil(problem, trials):
        slowest = max(trials, key=lambda trial: trial.measurement.median_us)
        return [
            replace(t, measurement=replace(t.measurement, median_us=0.001)) if t is slowest else t
            for t in trials
        ]

    assert misled(world, learned(world, change=spoil)) <= 0.1


def test_slow_outliers_do_not_fool_the_forest(world):
    """The best config of each problem but two was once measured a thousand times too slow."""

    def spoil(problem, trials):
        if problem.m in (256, 4096):
            return trials
        fast = min(trials, key=lambda trial: trial.measurement.median_us)
        slow = fast.measurement.median_us * 1000
        return [
            replace(t, measurement=replace(t.measurement, median_us=slow)) if t is fast else t
            for t in trials
        ]

    assert misled(world, learned(world, (256, 512, 768, 2048, 4096), spoil)) <= 0.2


def test_a_throttled_key_does_not_fool_the_forest(world):
    """All its times are three times too long, and unmarked: their order still holds."""

    def spoil(problem, trials):
        if problem.m != 512:
            return trials
        slow = [(t, t.measurement.median_us * 3) for t in trials]
        return [replace(t, measurement=replace(t.measurement, median_us=us)) for t, us in slow]

    assert misled(world, learned(world, change=spoil)) <= 0.1


def test_failures_of_the_machine_do_not_fool_the_forest(world):
    """All trials of a block_m were lost to a GPU that fell over."""

    def spoil(problem, trials):
        return [
            world.failed(t.config, Status.LAUNCH_ERROR) if t.config.block_m == 64 else t
            for t in trials
        ]

    known = Experience(trees=24)
    for m in (256, 512, 768):
        problem = world.problem(m)
        trials = world.trials(problem)
        known.note(problem, world.device, spoil(problem, trials) if m == 256 else trials)
    assert misled(world, known) <= 0.1


def test_configs_that_fail_are_predicted_slow(world):
    def spoil(problem, trials):
        return [world.failed(t.config) if t.config.num_stages == 5 else t for t in trials]

    known = learned(world, change=spoil)
    stages = np.array([config.num_stages for config in world.configs])
    found = predicted(known, world)
    assert found[stages == 5].min() > found[stages == 3].mean()


def test_slowdowns_are_cut_off():
    found = slowdowns_of(np.array([10.0, 11.0, 1e9, math.inf]))
    assert found == pytest.approx([0.0, math.log(1.1), WORST, WORST])


def test_too_few_trials_are_no_experience(world):
    known = Experience()
    assert known.forest() is None
    known.note(world.problem(64), world.device, world.trials(world.problem(64))[:3])
    assert known.forest() is None
    assert not known.knows("sm_90")
    assert known.forest() is None
    known.note(world.problem(64), world.device, world.trials(world.problem(64)))
    assert not known.knows("sm_90")  # noted, and not settled
    known.settle()
    assert known.knows("sm_90")
    assert known.forest() is not None
    assert not known.knows("sm_80")


def test_a_key_is_not_predicted_by_trees_that_know_its_own_trials(world):
    known = learned(world, trees=64)
    own = world.problem(384)
    before = predicted(known, world)
    upside_down = [
        world.trial(own, config, median_us=world.time_us(own, other))
        for config, other in zip(world.configs, reversed(world.configs), strict=True)
    ]
    known.note(own, world.device, upside_down)
    after = predicted(known, world)
    assert np.corrcoef(before, after)[0, 1] > 0.9
    known.note(own, world.device, upside_down, made_with="another compiler")
    assert np.corrcoef(before, predicted(known, world))[0, 1] < 0.9


def test_rows_are_capped_and_the_fastest_kept(world, monkeypatch):
    grown = []
    monkeypatch.setattr(Forest, "grow", lambda *args, **how: grown.append(args))
    known = Experience(trees=4, max_rows=40)
    for m in (256, 512, 1024, 2048):
        known.note(world.problem(m), world.device, world.trials(world.problem(m)))
    known.forest()
    _, rows, slowdowns, subjects = grown[0]
    assert len(rows) == len(slowdowns) == len(subjects) == 40
    assert list(slowdowns).count(0.0) == 4
    assert len({subject.problem for subject in subjects}) == 4
    assert max(slowdowns) > 0.5


def test_a_forest_grown_again_is_the_one_grown_at_once(world):
    """Whatever was kept of the last one: more trials, other times, another column or device."""
    steps = [(world.problem(m), world.device, world.trials(world.problem(m))) for m in (256, 512)]
    problem, device, trials = steps[0]
    slower = [replace(t, measurement=replace(t.measurement, median_us=9e3)) for t in trials[:20]]
    switched = [replace(t, config=replace(t.config, switches=(("eager", 1),))) for t in trials]
    smaller = replace(device, l2_bytes=device.l2_bytes // 2)
    steps += [
        (world.problem(2048), device, world.trials(world.problem(2048))[:30]),
        (problem, device, slower + switched[:20]),
        (problem, smaller, switched[20:]),
        (world.problem(2048), device, world.trials(world.problem(2048))),
    ]
    again = Experience(trees=8, max_rows=100)
    for count, (problem, device, trials) in enumerate(steps, 1):
        again.note(problem, device, trials)
        at_once = Experience(trees=8, max_rows=100)
        for step in steps[:count]:
            at_once.note(*step)
        assert np.array_equal(predicted(again, world), predicted(at_once, world))


def test_a_time_that_is_corrected_is_seen_once_there_is_enough_news(world):
    known, at_once = learned(world), learned(world)
    before = predicted(known, world)
    corrected = [
        world.trial(world.problem(512), config, median_us=1e3 + i)
        for i, config in enumerate(world.configs)
    ]
    known.note(world.problem(512), world.device, corrected)
    assert np.array_equal(predicted(known, world), before)  # no trial more than before
    for each in (known, at_once):
        each.note(world.problem(512), world.device, corrected)
        each.note(world.problem(700), world.device, world.trials(world.problem(700)))
    assert np.array_equal(predicted(known, world), predicted(at_once, world))


def test_features_are_made_only_of_what_is_new(world, monkeypatch):
    made = []
    rows = Columns.rows
    monkeypatch.setattr(Columns, "rows", lambda self, problem, *how: (
        made.append(problem.m), rows(self, problem, *how))[1])  # fmt: skip
    known = learned(world, trees=2)
    known.forest()
    assert made == [256, 512, 2048, 4096]
    known.note(world.problem(300), world.device, world.trials(world.problem(300)))
    known.settle()
    known.forest()
    assert made[4:] == [300]


def test_trials_are_noted_and_settled_while_a_forest_grows(world, monkeypatch):
    """And the forest that grew meanwhile, of what was known before, is nobody's but its own."""
    grow, begun, go_on = Forest.grow, threading.Event(), threading.Event()

    def slowly(*args, **how):
        begun.set()
        assert go_on.wait(60)
        return grow(*args, **how)

    known = learned(world)
    known.settle()
    monkeypatch.setattr(Forest, "grow", slowly)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(known.forest)
        assert begun.wait(60)
        known.note(world.problem(384), world.device, world.trials(world.problem(384)))
        known.settle()
        go_on.set()
        assert known.forest() is not first.result()
    at_once = learned(world, (256, 384, 512, 2048, 4096))
    assert np.array_equal(predicted(known, world), predicted(at_once, world))


def test_what_a_turn_settles_is_seen_at_the_next(world):
    known = learned(world)
    known.turn()  # the first settles, as whoever asks first does
    before = known.forest()
    known.note(world.problem(384), world.device, world.trials(world.problem(384)))
    known.turn()
    assert known.forest() is before
    known.turn()
    at_once = learned(world, (256, 384, 512, 2048, 4096))
    assert known.forest() is not before
    assert np.array_equal(predicted(known, world), predicted(at_once, world))
    last = known.forest()
    known.turn()
    assert known.forest() is last  # nothing is new


def test_nobody_waits_for_what_the_next_turn_shows(world):
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*args, **how):
        if begun.is_set():
            assert go_on.wait(60)
        begun.set()
        return Forest.grow(*args, **how)

    known = learned(world, grow=slowly)
    known.turn()
    before = known.forest()
    known.note(world.problem(384), world.device, world.trials(world.problem(384)))
    known.turn()
    assert known.forest() is before  # while another grows
    known.turn()
    go_on.set()
    assert known.forest() is not before


def test_all_is_settled_where_it_has_to_be(world):
    known = learned(world)
    before = known.forest()
    known.note(world.problem(384), world.device, world.trials(world.problem(384))[:1])
    known.settle()
    assert known.forest() is before  # too little is new
    known.settle(whole=True)
    assert known.forest() is not before


def test_without_takes_out_every_dtype_of_the_sizes(world):
    known = learned(world)
    twin = replace(world.problem(256), dtype="float16", out_dtype="float16")
    known.note(twin, world.device, world.trials(world.problem(256)))
    rest = known.without([world.problem(256)])
    assert {p.m for p in rest.problems} == {512, 2048, 4096}
    assert {p.m for p in known.problems} == {256, 512, 2048, 4096}


def test_features_are_finite_for_every_recorded_config():
    recording = Recording.load(shipped_recordings()[0])
    widths = set()
    for problem, found in recording.problems.items():
        rows = features(problem, recording.device, ConfigTable(tuple(found.screening)))
        assert np.isfinite(rows).all()
        widths.add(rows.shape[1])
    assert len(widths) == 1


def test_the_roofline_lies_under_every_recorded_time():
    recording = Recording.load(shipped_recordings()[0])
    for problem, found in recording.problems.items():
        fastest = min(t.measurement.median_us for t in found.screening.values() if t.measurement)
        assert roofline_us(problem, recording.device) < fastest


def test_the_shipped_portfolio_is_the_one_of_the_shipped_recordings():
    made = {f"portfolio-{p.name}": portfolio_of(Recording.load(p)) for p in shipped_recordings()}
    assert {path.name for path in shipped_portfolios()} == set(made)
    for path in shipped_portfolios():
        assert path.read_bytes() == made[path.name].to_bytes(), (
            "a recording was made anew: run python scripts/make_portfolio.py"
        )


def test_a_portfolio_holds_the_fastest_and_others_of_each_problem():
    recording = Recording.load(shipped_recordings()[0])
    portfolio = portfolio_of(recording)
    assert set(portfolio.problems) == set(recording.problems)
    for problem, found in portfolio.problems.items():
        kept = [t.measurement.median_us for t in found.screening.values()]
        whole = [t.measurement.median_us for t in recording.problems[problem].screening.values()]
        assert len(kept) == PORTFOLIO_CONFIGS
        assert min(kept) == min(whole)
        assert max(kept) > 1.1 * min(kept)
    assert shipped_experience().problems == frozenset(recording.problems)


def test_a_config_of_a_variant_nobody_knows_is_predicted_too(world):
    known = learned(world)
    stranger = Config("novel", 64, 64, 64, switches=(("trick", 1),))
    found = known.forest().predict(world.problem(384), world.device, [stranger])
    assert np.isfinite(found).all()
