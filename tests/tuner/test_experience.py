"""What a run takes from the store for its search to learn from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.conftest import CONFIGS, OTHER, PROBLEM, landscape, measurement
from tunekit.device import KNOWN_DEVICES
from tunekit.key import TuningKey
from tunekit.search import Budget, Experience, shipped_experience
from tunekit.trial import Fingerprint, Origin, Status, Trial
from tunekit.tuner import experience as module
from tunekit.tuner import run
from tunekit.tuner.experience import stored_experience

H200 = KNOWN_DEVICES["sm_90"]


def fill(store, runner, problem=OTHER, *, device=H200, **changes):
    """Store a trial of each config of a problem, made as the runner does but for `changes`."""
    store.put_device(device)
    made = replace(runner.provenance(problem, CONFIGS[0]), **changes)
    trials = [Trial(c, Status.OK, measurement(landscape(problem, c))) for c in CONFIGS]
    store.add_trials(TuningKey.of(problem, device.slug), [(t, made) for t in trials])


def known_of(store, runner, problem=OTHER, **how):
    known = stored_experience(store, runner, **how)
    return [config for other, config, _ in known.times() if other == problem]


def test_trials_of_other_keys_are_known_beside_the_portfolio(store, make_runner):
    runner = make_runner()
    fill(store, runner)
    assert sorted(known_of(store, runner)) == sorted(CONFIGS)
    known = stored_experience(store, runner)
    assert known.problems == shipped_experience().problems | {OTHER}


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": Fingerprint("an older kernel", "compiler-1")},
        {
            "fingerprint": Fingerprint("triton-autotune:0123", "unknown"),
            "protocol": "triton-do_bench",
        },
        {"protocol": "fake-0"},
    ],
    ids=["other-source", "autotune", "other-protocol"],
)
def test_what_another_kernel_or_protocol_did_is_not_known(store, make_runner, changes):
    runner = make_runner()
    fill(store, runner, **changes)
    assert known_of(store, runner) == []


def test_what_another_compiler_or_gpu_of_the_architecture_did_is_known(store, make_runner):
    runner = make_runner()
    fill(store, runner, fingerprint=Fingerprint("source-1", "compiler-0"))
    assert len(known_of(store, runner)) == len(CONFIGS)
    third = replace(OTHER, m=2048)
    fill(store, runner, third, device=replace(H200, name="NVIDIA H100", multiprocessors=114))
    assert len(known_of(store, runner, third)) == len(CONFIGS)
    fourth = replace(OTHER, m=4096)
    fill(store, runner, fourth, device=KNOWN_DEVICES["sm_80"])
    assert known_of(store, runner, fourth) == []


def test_replayed_and_measured_trials_of_a_key_are_not_compared(store, make_runner):
    """What is replayed is half as slow here: together they would say that it is the better."""
    runner = make_runner()
    fill(store, runner)
    replayer = make_runner(origin=Origin.REPLAYED)
    made = replayer.provenance(OTHER, CONFIGS[0])
    half = [Trial(c, Status.OK, measurement(landscape(OTHER, c) / 2)) for c in CONFIGS[:8]]
    store.add_trials(TuningKey.of(OTHER, H200.slug), [(t, made) for t in half])
    assert len(known_of(store, runner)) in (len(CONFIGS), len(CONFIGS) + 8)


def test_on_retune_nothing_stored_of_the_keys_is_known(store, make_runner):
    runner = make_runner()
    fill(store, runner)
    fill(store, runner, PROBLEM)
    assert known_of(store, runner, new=[OTHER]) == []
    assert known_of(store, runner, PROBLEM, new=[OTHER]) != []


def test_only_the_latest_trials_are_read(store, make_runner, monkeypatch):
    monkeypatch.setattr(module, "MOST_TRIALS", 10)
    runner = make_runner()
    fill(store, runner, PROBLEM)
    fill(store, runner)
    assert len(known_of(store, runner)) == 10
    portfolio = {c for p, c, _ in shipped_experience().times() if p == PROBLEM}
    assert set(known_of(store, runner, PROBLEM)) == portfolio


def test_a_run_learns_from_what_is_stored(store, make_runner, tasks, monkeypatch):
    """A key next to a stored one is begun where that one was fast."""
    monkeypatch.setattr(
        module, "shipped_experience", lambda seed, grow: Experience(seed=seed, grow=grow)
    )
    runner = make_runner()
    for m in (256, 384, 1024):
        fill(store, runner, replace(PROBLEM, m=m))
    run(tasks[:1], runner=runner, store=store, budget=Budget(trials=4))
    best = min(landscape(PROBLEM, config) for config in CONFIGS)
    assert min(landscape(PROBLEM, config) for _, config in runner.screened) <= 1.05 * best


def test_other_samplers_read_nothing(store, make_runner, tasks, monkeypatch):
    def refuse(*args, **how):
        raise AssertionError("the store was read")

    monkeypatch.setattr(type(store), "recent_trials", refuse)
    run(tasks[:1], runner=make_runner(), store=store, sampler="random", budget=Budget(trials=2))
