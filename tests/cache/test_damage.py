"""A row that cannot be read is left out alone, is logged, and heals with the next save."""

from __future__ import annotations

import sqlite3

import pytest

from tunekit.cache import export_json


def change(store, *statements):
    with sqlite3.connect(store.location) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE config SET text = \'{"variant": "poin\' WHERE id = 2',
        "UPDATE config SET text = '[1, 2]' WHERE id = 2",
        "UPDATE config SET text = replace(text, '\"num_warps\":8', '\"num_warps\":null')",
        'UPDATE config SET text = replace(text, \'"num_warps":8\', \'"num_warps":8,"ctas":2\')',
        "UPDATE best SET median_us = NULL WHERE id = 2",
        "UPDATE best SET low_us = 'fast' WHERE id = 2",
        "UPDATE best SET high_us = -1.0 WHERE id = 2",
        "UPDATE best SET repetitions = NULL WHERE id = 2",
        "UPDATE best SET choice = 'cublas' WHERE id = 2",
        "UPDATE best SET origin = 'dreamt' WHERE id = 2",
        "UPDATE best SET environment_id = 99 WHERE id = 2",
        "UPDATE baseline SET median_us = NULL WHERE id = 2",
        "UPDATE problem SET layout = 'zz' WHERE m = 64",
    ],
)
def test_one_damaged_row_costs_only_itself(store, make, damage, caplog):
    good = make.best()
    bad = make.best(key=make.key(m=64), config=make.config(num_warps=8))
    store.put_best(good)
    store.put_best(bad)
    change(store, damage)
    assert store.bests() == [good]
    assert "damaged" in caplog.text
    assert bad.config.variant in export_json(store)
    if "problem" not in damage:
        change(store, "DELETE FROM config WHERE id = 2")
        assert store.put_best(bad)
        assert store.bests() == [bad, good]


def test_a_config_that_lacks_a_newer_field_takes_its_default(store, make):
    store.put_best(make.best())
    change(store, "UPDATE config SET text = replace(text, '\"split_k\":1,', '')")
    assert store.bests() == [make.best()]


def test_damaged_trials_are_left_out_alone(store, make):
    trials = [make.trial(), make.trial(num_stages=2), make.trial(None, num_warps=8)]
    store.add_trials(make.key(), [(trial, make.provenance()) for trial in trials])
    change(
        store,
        "UPDATE trial SET median_us = NULL WHERE id = 2",
        "UPDATE trial SET status = 'bored' WHERE id = 3",
    )
    assert store.trials(make.key()) == [(trials[0], make.provenance())]
