"""Files damaged at random: refused whole, or taken in part with the refused rows listed.

CI tries 10 of each kind; `pytest --hypothesis-profile full -rP` tries 500 of each, 5,000 in all,
and prints what became of them.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import settings

from tunekit.cache import Policy, Store, export_json, export_sqlite, import_json, import_sqlite
from tunekit.errors import ExchangeError
from tunekit.space import Violation

ODD_VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**300, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *("", "x", "\ud800", "\0", "9" * 5000, "float16", "nn", "ok", "measured"),
    *([], {}, [[]], {"": 1}),
]
ROWS = ("bests", "baselines", "trials", "devices")


def powers_of_two(config, problem, device):
    """Stand in for the kernels' own rules."""
    for name in ("block_m", "block_n", "block_k"):
        size = getattr(config, name)
        if size & (size - 1):
            return Violation("power-of-two", f"{name}={size}")
    return None


def sealed(document: dict) -> bytes:
    """Return a document with the checksum it should have, so that only its rows can tell."""
    body = {name: value for name, value in document.items() if name != "checksum"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum}).encode()


def flip_bits(whole, chance):
    damaged = bytearray(whole)
    for _ in range(chance.choice([1, 1, 1, 2, 10])):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut(whole, chance):
    return whole[: chance.randrange(len(whole))]


def drop_a_part(whole, chance):
    start = chance.randrange(len(whole) - 1)
    return whole[:start] + whole[start + chance.randrange(1, 200) :]


def repeat_a_part(whole, chance):
    start = chance.randrange(len(whole) - 1)
    return whole[:start] + whole[start : start + chance.randrange(1, 2000)] + whole[start:]


def wrong_values(whole, chance):
    """Put values of other types, and numbers that are too large, anywhere inside."""
    document = json.loads(whole)
    for _ in range(chance.randrange(1, 4)):
        here, place = document, chance.choice(list(document))
        while isinstance(here[place], (dict, list)) and here[place] and chance.random() < 0.9:
            here = here[place]
            place = chance.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if chance.random() < 0.25:
            del here[place]
        else:
            here[place] = copy.deepcopy(chance.choice(ODD_VALUES))
    return sealed(document)


def illegal_configs(whole, chance):
    document = json.loads(whole)
    for row in chance.sample(document["bests"], 2) + chance.sample(document["trials"], 2):
        field = chance.choice(["block_m", "block_n", "block_k", "num_warps", "variant"])
        row["config"][field] = chance.choice([0, 3, 48, -16, 2**40, 63, "64", None])
    return sealed(document)


def duplicate_rows(whole, chance):
    document = json.loads(whole)
    for section in chance.choices(ROWS, k=3):
        rows = document[section]
        again = json.loads(json.dumps(chance.choice(rows)))
        if "measurement" in again and again["measurement"] and chance.random() < 0.5:
            again["measurement"]["repetitions"] = chance.randrange(1, 1000)
        rows.insert(chance.randrange(len(rows) + 1), again)
    return sealed(document)


def wrong_columns(path, chance):
    """Put values of other types into rows of an SQLite file, which voids its seal."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = ("device", "environment", "problem", "config", "trial", "baseline", "best")
        for _ in range(chance.randrange(1, 4)):
            table = chance.choice(tables)
            columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
            value = chance.choice(["x", b"\0\xff", -1, 0, 2**62, 1e300, 0.5, "", "{", "\x1b[31m"])
            column = chance.choice([row[1] for row in columns if row[1] != "id"])
            order = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE id % ? = 0"
            connection.execute(order, (value, chance.randrange(1, 4)))


JSON = [flip_bits, cut, drop_a_part, repeat_a_part, wrong_values, illegal_configs, duplicate_rows]
SQLITE = [flip_bits, cut, wrong_columns]
CASES = [*(("json", mutate) for mutate in JSON), *(("db", mutate) for mutate in SQLITE)]
FEWEST = 10
"""Of each kind: some of them have to end in each way."""
IN_PART = {wrong_values, illegal_configs, duplicate_rows, wrong_columns}


@pytest.mark.parametrize(("form", "mutate"), CASES, ids=lambda it: getattr(it, "__name__", it))
def test_a_damaged_file_never_ends_otherwise(tmp_path, make, form, mutate):
    source = make.filled(tmp_path / "source.db")
    file = tmp_path / f"export.{form}"
    if form == "json":
        file.write_text(export_json(source, all_trials=True))
    else:
        export_sqlite(source, file, all_trials=True)
    whole, chance = file.read_bytes(), random.Random(f"{form} {mutate.__name__}")
    outcomes: Counter[str] = Counter()
    for number in range(max(FEWEST, settings().max_examples // 2)):
        if number % 50 == 0:
            target = make.filled(tmp_path / f"target-{number}.db")
        if mutate is wrong_columns:
            file.write_bytes(whole)
            mutate(file, chance)
        else:
            file.write_bytes(mutate(whole, chance))
        before = export_json(target, all_trials=True)
        ended = outcome(target, file, form)
        outcomes[ended] += 1
        if mutate not in IN_PART:  # the store has the same rows, so what passes has to be them
            assert export_json(target, all_trials=True) == before, ended
    print(f"{form} {mutate.__name__}: {dict(sorted(outcomes.items()))}")
    assert outcomes["refused whole"] or mutate in IN_PART
    assert outcomes["taken in part"] if mutate in IN_PART else not outcomes["taken in part"]
    # A letter or a bit that says nothing: a space, or the mark that an SQLite file is sealed.
    assert mutate in IN_PART or outcomes["taken whole"] <= max(1, outcomes.total() / 10)


def outcome(target: Store, file, form: str) -> str:
    """Import a damaged file into a store, and say how that ended."""
    before, bytes_before = export_json(target, all_trials=True), file.read_bytes()
    options = {"policy": Policy.REPLACE, "legality": powers_of_two}
    try:
        if form == "json":
            report = import_json(target, bytes_before.decode("utf-8"), **options)
        else:
            report = import_sqlite(target, file, **options)
    except UnicodeDecodeError:
        return "refused whole"  # as the command line does, which reads the file as text
    except ExchangeError as error:
        check_line(str(error))
        assert export_json(target, all_trials=True) == before
        return "refused whole"
    finally:
        assert file.read_bytes() == bytes_before
    for _, reason in report.refused:
        check_line(reason)
    with Store.open(target.location) as again:
        export_json(again, all_trials=True)
    if not report.refused:
        return "taken whole"
    taken = report.added + report.replaced + report.kept
    assert taken or export_json(target, all_trials=True) == before
    return "taken in part" if taken else "refused row by row"


def check_line(text: str) -> None:
    assert text
    assert text.isprintable()
    assert len(text) <= 400
