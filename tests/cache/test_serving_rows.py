"""The rows as a process reads them to serve: decoded when they may answer, and alike for all."""

from __future__ import annotations

import gc
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.errors import StoreError
from tunekit.key import Problem
from tunekit.lookup import RowTable
from tunekit.trial import Fingerprint, Grade

ALIKE = {
    "fingerprint": lambda family, variant: Fingerprint("5eed", "triton-3.9"),
    "legality": lambda config, problem, device: None,
}


def served_from(location, device):
    """Read a store as a process does at its first multiplication."""
    with Store.open(location, create=False) as store:
        devices = {info.slug: info for info in store.devices()}
        rows = [row for slug in devices for row in store.unread_bests(gpu=slug)]
    return RowTable(rows, devices, device=device, **ALIKE)


def answer_for(table, m, **fields):
    problem = Problem("matmul", m, 1024, 256, fields.pop("dtype", "bfloat16"), **fields)
    return next(table.answers(problem), None)


def test_a_row_read_late_is_the_row_that_is_stored(make, own_cache):
    with make.filled(own_cache) as store:
        stored = {(best.key, best.config): best for best in store.bests()}
        unread = store.unread_bests()
    read = [row.read() for row in unread]
    assert {(best.key, best.config): best for best in read} == stored
    assert [tuple(row.place) for row in unread] == [
        tuple(best.key.to_dict().values()) for best in read
    ]


def test_only_the_rows_of_the_gpu_asked_for_are_read(make, own_cache):
    with make.filled(own_cache) as store:
        slugs = {row.place[5] for row in store.unread_bests(gpu=make.device.slug)}
        assert slugs == {make.device.slug}
        assert store.unread_bests(gpu="no-such-gpu") == []


@pytest.mark.parametrize("collecting", [True, False])
def test_reading_rows_leaves_the_collector_as_it_was(make, own_cache, collecting):
    with make.filled(own_cache) as store:
        try:
            gc.enable() if collecting else gc.disable()
            assert store.unread_bests()
            assert gc.isenabled() is collecting
            own_cache.write_bytes(b"no database" * 100)
            with pytest.raises(StoreError):
                store.unread_bests()
            assert gc.isenabled() is collecting
        finally:
            gc.enable()


def test_an_imported_row_read_late_says_that_it_is(make, store):
    store.put_best(make.best())
    change(store, "UPDATE best SET imported = 1")
    (row,) = store.unread_bests()
    assert [row.read()] == store.bests()
    assert row.read().provenance.origin.value == "imported"


def change(store, statement):
    with closing(sqlite3.connect(store.location)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE config SET text = \'{"variant": "poin\' WHERE id = 2',
        'UPDATE config SET text = replace(text, \'"num_warps":8\', \'"num_warps":8,"ctas":2\')',
        "UPDATE best SET median_us = NULL WHERE id = 2",
        "UPDATE best SET low_us = 'fast' WHERE id = 2",
        "UPDATE best SET final = 'maybe' WHERE id = 2",
        "UPDATE best SET imported = 7 WHERE id = 2",
        "UPDATE best SET choice = 'cublas' WHERE id = 2",
        "UPDATE best SET environment_id = 99 WHERE id = 2",
    ],
)
def test_a_damaged_row_is_left_out_and_logged_when_it_is_asked_for(store, make, damage, caplog):
    good = make.best(key=make.key(m=512))
    store.put_best(good)
    store.put_best(make.best(key=make.key(m=600), config=make.config(num_warps=8)))
    change(store, damage)
    table = served_from(store.location, make.device)
    assert caplog.text == ""
    assert answer_for(table, 512).grade is Grade.EXACT
    near = answer_for(table, 600)
    assert (near.grade, near.best) == (Grade.NEAREST, good)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("damage", ["m = 'wide'", "k = -5", "layout = 'zz'", "aligned = 7"])
def test_a_row_whose_key_is_damaged_answers_for_nothing(store, make, damage):
    good = make.best(key=make.key(m=512))
    store.put_best(good)
    store.put_best(make.best(key=make.key(m=600)))
    change(store, f"UPDATE problem SET {damage} WHERE m = 600")
    table = served_from(store.location, make.device)
    for asked in (512, 600, 1000):
        assert answer_for(table, asked).best == good


def fill_at_random(location, make, seed):
    """Store one and the same rows, in an order of this seed, on three GPUs of one size."""
    gpus = [make.device, replace(make.device, name="Twin A"), replace(make.device, name="Twin B")]
    rows = [
        make.best(
            10.0,
            key=make.key(m=m, gpu=gpu.slug),
            config=make.config(block_m=block),
            provenance=make.provenance(compiler=compiler),
        )
        for m, block in ((64, 16), (128, 32), (256, 64), (4096, 128))
        for gpu in gpus
        for compiler in ("triton-3.9", "triton-3.6")
        if not (gpu is make.device and m == 128)
    ]
    random.Random(seed).shuffle(rows)
    with Store.open(location) as store:
        for gpu in random.Random(seed).sample(gpus, len(gpus)):
            store.put_device(gpu)
        for row in rows:
            store.put_best(row)


def choices(location, device):
    """Return what a process would run for many problems, in its words."""
    table = served_from(location, device)
    asked = random.Random(3).sample(range(1, 9000), 150)
    found = [answer_for(table, m) for m in (64, 128, 256, 4096, *asked)]
    return [answer and (str(answer.best.key), str(answer.best.config)) for answer in found]


def test_ranks_agree_on_every_problem_on_an_empty_and_on_a_full_store(make, tmp_path, together):
    empty, full = tmp_path / "empty.db", tmp_path / "full.db"
    Store.open(empty).close()
    fill_at_random(full, make, 0)
    found = together(8, lambda number: (choices(empty, make.device), choices(full, make.device)))
    assert all(one == found[0] for one in found)
    assert set(found[0][0]) == {None}
    assert sum(choice is not None for choice in found[0][1]) > 20


def test_stores_filled_in_another_order_choose_alike(make, tmp_path):
    found = set()
    for seed in range(4):
        fill_at_random(tmp_path / f"{seed}.db", make, seed)
        found.add(tuple(choices(tmp_path / f"{seed}.db", make.device)))
    assert len(found) == 1
