"""The rule of replacement, in any order of writes, imports and openings, from several stores.

Longer: `pytest tests/cache/test_replacement.py --hypothesis-profile full`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete

from tunekit.cache import Policy, Store, export_json, import_json
from tunekit.cache.models import BaselineRow, BestRow
from tunekit.errors import ExchangeError
from tunekit.trial import Best, Origin

EVERY_DATABASE = True


@dataclass
class Row:
    """What the model keeps for a key under a compiler."""

    best: Best
    imported: bool

    @property
    def is_replayed(self) -> bool:
        return self.best.provenance.origin is Origin.REPLAYED

    def shown(self) -> Best:
        if not self.imported:
            return self.best
        made = replace(self.best.provenance, origin=Origin.IMPORTED)
        return replace(self.best, provenance=made, imported_replay=self.is_replayed)


def put_takes(new: Row, old: Row) -> bool:
    """The design's rule for a result of one's own."""
    if new.is_replayed != old.is_replayed:
        return old.is_replayed
    corrects = new.best.config == old.best.config
    return corrects or new.best.measurement.median_us < old.best.measurement.median_us


def import_takes(policy: Policy, new: Row, old: Row) -> bool:
    """The design's rule for a row of a file."""
    if policy in (Policy.KEEP, Policy.FAIL):
        return False
    if policy is Policy.REPLACE:
        return True
    if policy is Policy.NEWER:
        later = new.best.provenance.created_at > old.best.provenance.created_at
        return later and (old.is_replayed or not new.is_replayed)
    if new.is_replayed != old.is_replayed:
        return old.is_replayed
    return new.best.measurement.median_us < old.best.measurement.median_us


ROWS = st.fixed_dictionaries(
    {
        "m": st.sampled_from([1, 2]),
        "warps": st.sampled_from([1, 2, 4]),
        "median_us": st.sampled_from([5.0, 10.0, 10.5, 20.0]),
        "replayed": st.booleans(),
        "compiler": st.sampled_from(["a", "b"]),
        "hour": st.integers(0, 3),
    }
)


@pytest.fixture
def machine(make, tmp_path):
    """Three stores on one file beside a dictionary that keeps the design's rule."""
    numbers = itertools.count()
    source = Store.open(tmp_path / "source.db")
    source.put_device(make.device)

    def file_of(rows):
        """Return an export file with rows, those of one place only once, and its bests."""
        with source.database.writing() as connection:
            connection.execute(delete(BestRow))
            connection.execute(delete(BaselineRow))
        for row in rows:
            source.put_best(best_of(row), force=True)
        return export_json(source), source.bests()

    def best_of(row):
        at = datetime(2025, 6, 1, 12) + timedelta(hours=row["hour"])
        best = make.best(
            row["median_us"],
            key=make.key(m=row["m"]),
            config=make.config(num_warps=row["warps"]),
            vendor=make.vendor(40.0),
            provenance=make.provenance(
                compiler=row["compiler"], created_at=f"{at:%Y-%m-%dT%H:%M:%SZ}"
            ),
        )
        return make.replayed(best) if row["replayed"] else best

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.path = tmp_path / f"{next(numbers)}.db"
            self.stores = [Store.open(self.path) for _ in range(3)]
            self.stores[0].put_device(make.device)
            self.model: dict[tuple[int, str], Row] = {}

        @rule(which=st.integers(0, 2), row=ROWS, how=st.sampled_from(["", "", "force", "stale"]))
        def put(self, which, row, how):
            new = Row(best_of(row), imported=False)
            place = row["m"], row["compiler"]
            old = self.model.get(place)
            expected = old is None or how != "" or put_takes(new, old)
            stale = (lambda found: True) if how == "stale" else None
            stored = self.stores[which].put_best(new.best, force=how == "force", stale=stale)
            assert stored is expected
            if expected:
                self.model[place] = new

        @rule(
            which=st.integers(0, 2),
            rows=st.lists(ROWS, min_size=1, max_size=3),
            policy=st.sampled_from(Policy),
            dry_run=st.booleans(),
        )
        def take_file(self, which, rows, policy, dry_run):
            text, bests = file_of(rows)
            after = dict(self.model)
            for best in bests:
                place = best.key.m, best.provenance.fingerprint.compiler
                new, old = Row(best, imported=True), after.get(place)
                if old is None or (best != old.best and import_takes(policy, new, old)):
                    after[place] = new
                elif policy is Policy.FAIL and best != old.best:
                    with pytest.raises(ExchangeError):
                        self.take(which, text, policy, dry_run)
                    return
            self.take(which, text, policy, dry_run)
            if not dry_run:
                self.model = after

        def take(self, which, text, policy, dry_run):
            report = import_json(
                self.stores[which], text, policy=policy, legality=lambda *_: None, dry_run=dry_run
            )
            assert report.refused == []

        @rule(which=st.integers(0, 2))
        def open_again(self, which):
            self.stores[which].close()
            self.stores[which] = Store.open(self.path)

        @invariant()
        def every_store_holds_what_the_model_holds(self):
            expected = [self.model[place].shown() for place in sorted(self.model)]
            for store in self.stores:
                assert store.bests() == expected

        def teardown(self):
            for store in self.stores:
                store.close()

    return Machine


def test_the_rule_holds_in_any_order(machine):
    examples = settings().max_examples // 2
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=10)
    )


def test_the_fastest_measured_row_is_left_whatever_processes_write_at_once(store, make, together):
    """Every process writes configs of its own, so that none corrects another's row."""

    def write(number):
        for step in range(20):
            median_us = 100.0 + (step * 7 + number * 3) % 20 + number / 10
            config = make.config(num_warps=2**number, num_stages=1 + step)
            best = make.best(median_us, config=config)
            store.put_best(make.replayed(replace(best, trials=step)) if step % 3 == 0 else best)
            if step % 5 == 0:
                store.put_best(make.replayed(make.best(1.0 + step, config=config)))
        return min(
            100.0 + (step * 7 + number * 3) % 20 + number / 10 for step in range(20) if step % 3
        )

    fastest = min(together(4, write))
    (left,) = store.bests()
    assert left.measurement.median_us == fastest
    assert left.provenance.origin is Origin.MEASURED
