"""Which row stays: the rule for new results and the policies of an import."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tunekit.cache import Policy, Store
from tunekit.cache.rules import policy_takes
from tunekit.trial import Origin

EVERY_DATABASE = True


@pytest.mark.parametrize(
    ("new_us", "new_replayed", "same_config", "old_replayed", "replaces"),
    [
        (9.0, False, False, False, True),  # faster
        (11.0, False, False, False, False),  # slower
        (10.0, False, False, False, False),  # as fast
        (11.0, False, True, False, True),  # the same config, measured again
        (11.0, False, False, True, True),  # measured goes before replayed, also when slower
        (9.0, True, False, False, False),  # and is not replaced by it, also when faster
        (9.0, True, True, False, False),  # nor corrected
        (9.0, True, False, True, True),
        (11.0, True, False, True, False),
        (11.0, True, True, True, True),
    ],
)
def test_a_new_best_replaces_by_the_rule(
    store, make, new_us, new_replayed, same_config, old_replayed, replaces
):
    old = make.best(10.0)
    new = make.best(new_us, config=make.config(num_warps=4 if same_config else 8))
    old = make.replayed(old) if old_replayed else old
    new = make.replayed(new) if new_replayed else new
    store.put_best(old)
    assert store.put_best(new) is replaces
    assert store.best(make.key()) == [new if replaces else old]


def test_force_and_staleness_replace_any_row(store, make):
    old, slower = make.best(10.0), make.replayed(make.best(20.0, config=make.config(num_warps=8)))
    store.put_best(old)
    asked = []
    assert not store.put_best(slower, stale=lambda best: bool(asked.append(best)))
    assert asked == [old]
    assert store.put_best(slower, stale=lambda best: True)
    assert store.put_best(old)
    assert store.put_best(slower, force=True)
    assert store.best(make.key()) == [slower]


def test_a_refused_best_leaves_the_vendor_measurement_it_was_chosen_against(store, make):
    old = make.best(10.0, vendor=make.vendor(12.0))
    store.put_best(old)
    assert not store.put_best(
        make.best(11.0, config=make.config(num_warps=8), vendor=make.vendor(5.0))
    )
    assert store.best(make.key()) == [old]


@pytest.mark.parametrize(
    ("policy", "faster", "newer", "measured_first"),
    [
        (Policy.FASTER, True, False, False),
        (Policy.NEWER, False, True, False),
        (Policy.KEEP, False, False, False),
        (Policy.REPLACE, True, True, True),
        (Policy.FAIL, False, False, False),
    ],
)
def test_each_policy_takes_what_it_says(make, policy, faster, newer, measured_first):
    old = (make.measurement(10.0), make.provenance())
    later = make.provenance(created_at="2026-01-01T00:00:00Z")
    assert policy_takes(policy, (make.measurement(9.0), make.provenance()), old) is faster
    assert policy_takes(policy, (make.measurement(11.0), later), old) is newer
    replayed = make.provenance(origin=Origin.REPLAYED, created_at="2026-01-01T00:00:00Z")
    assert policy_takes(policy, (make.measurement(1.0), replayed), old) is measured_first
    assert policy_takes(policy, (None, make.provenance()), old) is measured_first


@pytest.fixture
def machine(make, tmp_path):
    """A store beside a plain dictionary that keeps the same rule."""
    paths = (tmp_path / f"{number}.db" for number in range(10_000))

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.store = Store.open(next(paths))
            self.store.put_device(make.device)
            self.model = {}

        @rule(
            m=st.sampled_from([1, 2]),
            warps=st.sampled_from([1, 2, 4]),
            median_us=st.sampled_from([1.0, 2.0, 3.0]),
            replayed=st.booleans(),
            compiler=st.sampled_from(["a", "b"]),
            force=st.booleans(),
        )
        def put(self, m, warps, median_us, replayed, compiler, force):
            best = make.best(
                median_us,
                key=make.key(m=m),
                config=make.config(num_warps=warps),
                provenance=make.provenance(compiler=compiler),
            )
            best = make.replayed(best) if replayed else best
            old = self.model.get((m, compiler))
            if old is None or force:
                expected = True
            elif (old.provenance.origin is Origin.REPLAYED) is not replayed:
                expected = not replayed
            else:
                expected = old.config == best.config or median_us < old.measurement.median_us
            assert self.store.put_best(best, force=force) is expected
            if expected:
                self.model[m, compiler] = best

        @rule()
        def open_again(self):
            self.store = Store.open(self.store.location)

        @invariant()
        def holds_what_the_model_holds(self):
            assert self.store.bests() == [self.model[place] for place in sorted(self.model)]

    return Machine


def test_the_rule_holds_in_any_order(machine):
    from hypothesis import settings
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=12, deadline=None)
    )
