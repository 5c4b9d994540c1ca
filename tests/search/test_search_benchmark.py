"""The search benchmark: its figures, and that no search is given what it is to find."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.search.portfolio import add_recording, portfolio_of

SCRIPT = Path(__file__).parents[2] / "scripts" / "search_benchmark.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("search_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench(script):
    recording = Recording.load(shipped_recordings()[0])
    return script.Bench.open(shipped_recordings()[0], script.SUITE) if recording else None


def with_twin(bench):
    """Return a suite problem that was recorded in another dtype too, and that twin."""
    for problem in bench.problems:
        for other in bench.recording.problems:
            same = (other.m, other.n, other.k) == (problem.m, problem.n, problem.k)
            if same and other != problem:
                return problem, other
    raise AssertionError("no problem was recorded in two dtypes")


@pytest.mark.parametrize("portfolio", [False, True])
def test_nothing_of_a_held_out_problem_is_known(script, bench, portfolio):
    problem, twin = with_twin(bench)
    known = script.known_to(bench, [problem], portfolio=portfolio, seed=0)
    script.check_unseen(known, bench, problem)
    assert problem not in known.problems
    assert twin not in known.problems
    size = (problem.m, problem.n, problem.k)
    others = {p for p in bench.recording.problems if (p.m, p.n, p.k) != size}
    assert known.problems == others


def test_a_leak_of_the_same_sizes_is_caught(script, bench):
    problem, twin = with_twin(bench)
    known = script.known_to(bench, [problem], portfolio=False, seed=0)
    trials = list(bench.recording.problems[twin].screening.values())
    known.note(twin, bench.recording.device, trials[:4])
    with pytest.raises(script.LeakError, match="was given"):
        script.check_unseen(known, bench, problem)


def test_a_leak_under_another_name_is_caught(script, bench):
    """The held-out problem's times, said to be those of a problem next to it."""
    problem, twin = with_twin(bench)
    for source in (problem, twin):
        known = script.known_to(bench, [problem], portfolio=False, seed=0)
        disguised = replace(source, m=source.m + 8)
        trials = list(bench.recording.problems[source].screening.values())
        known.note(disguised, bench.recording.device, trials[:5])
        with pytest.raises(script.LeakError, match="its times"):
            script.check_unseen(known, bench, problem)


def test_a_portfolio_made_with_the_held_out_problem_is_caught(script, bench):
    problem, _ = with_twin(bench)
    known = script.known_to(bench, [problem], portfolio=True, seed=0)
    add_recording(known, portfolio_of(bench.recording))
    with pytest.raises(script.LeakError):
        script.check_unseen(known, bench, problem)


def test_regret_is_over_the_best_recorded(script):
    found = script.figures([[1.0, 0.1] + [0.0] * 30, [0.5] * 12 + [0.21] * 20], 32)
    assert found["regret_geomean"]["12"] == pytest.approx(1.5**0.5 - 1, abs=1e-5)
    assert found["regret_worst"] == {"12": 0.5, "24": 0.21, "32": 0.21}
    assert found["within_2pct"]["24"] == 0.5
    assert found["curve_geomean"][1] == pytest.approx((1.1 * 1.5) ** 0.5 - 1, abs=1e-6)


def test_transfer_finds_the_best_of_problems_it_never_saw(script, bench):
    """Three of the suite, with the other problems' trials in the store; the page has them all."""
    curves = [
        script.search_one(bench, problem, "transfer", 0, 24).curve
        for problem in bench.problems[::11]
    ]
    found = script.figures(curves, 24)
    assert found["regret_geomean"]["24"] <= 0.02
    assert found["regret_worst"]["24"] <= 0.08


def test_the_same_seed_and_recording_give_the_same_trials(script, bench):
    problem = bench.problems[8]
    runs = [script.search_one(bench, problem, "transfer-alone", 5, 16).curve for _ in range(2)]
    assert runs[0] == runs[1]


def test_the_stated_bound_holds_in_held_out_cases(script, bench):
    """Every other problem in bfloat16 beside the suite's; the docs have the full figures."""
    held = cases = 0
    beside = [
        problem
        for problem, found in sorted(bench.recording.problems.items())
        if problem not in bench.problems
        and len(found.screening) > 80
        and (problem.dtype, problem.layout, problem.batch) == ("bfloat16", "nt", 1)
    ]
    for problem in beside[::2]:
        known = script.known_to(bench, [problem], portfolio=True, seed=0)
        script.check_unseen(known, bench, problem)
        search = script.Search(bench, problem, "transfer", seed=0, trials=80, experience=known)
        for trials in (12, 24, 48):
            stated = search.run(trials).searcher.distance()
            assert 0 <= stated.expected <= stated.bound < 0.2
            held += search.curve[-1] <= stated.bound + 1e-9
            cases += 1
    assert cases >= 18
    assert held / cases >= 0.85
