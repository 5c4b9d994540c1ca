"""Export files damaged at random: refused, or taken in part with the refused rows listed."""

from __future__ import annotations

import hashlib
import json
import random

import pytest

from tunekit.cache import Policy, Store, export_json, import_json
from tunekit.errors import ExchangeError

ODD_VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**300, 10**400, 0.5, -0.0, 1e308, 5e-324),
    *(
        "",
        "x",
        "\ud800",
        "\0",
        "9" * 5000,
        "float16",
        "nn",
        "ok",
        "measured",
        [],
        {},
        [[]],
        {"": 1},
    ),
]


def flip_a_letter(text, chance):
    place = chance.randrange(len(text))
    return text[:place] + chr(chance.randrange(1, 0x250)) + text[place + 1 :]


def cut(text, chance):
    return text[: chance.randrange(len(text))]


def drop_a_part(text, chance):
    start = chance.randrange(len(text))
    return text[:start] + text[start + chance.randrange(1, 200) :]


def repeat_a_part(text, chance):
    start = chance.randrange(len(text))
    return text[:start] + text[start : start + chance.randrange(1, 2000)] + text[start:]


def change_values(text, chance):
    """Change values somewhere inside and seal the file again, so that only the rows can tell."""
    document = json.loads(text)
    for _ in range(chance.randrange(1, 4)):
        here = document
        while True:
            places = list(here) if isinstance(here, dict) else range(len(here))
            place = chance.choice(places)
            inside = here[place]
            if not isinstance(inside, (dict, list)) or not inside or chance.random() < 0.1:
                break
            here = inside
        action = chance.randrange(4)
        if action == 0:
            del here[place]
        elif action == 1 and isinstance(here, list):
            here.append(json.loads(json.dumps(inside)))
        else:
            here[place] = chance.choice(ODD_VALUES)
        if not isinstance(document.get("bests"), list) or not document["bests"]:
            break
    document.pop("checksum", None)
    body = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    return json.dumps(document)


@pytest.mark.parametrize("mutate", [flip_a_letter, cut, drop_a_part, repeat_a_part, change_values])
def test_a_damaged_file_never_ends_otherwise(tmp_path, make, mutate):
    text = export_json(make.filled(tmp_path / "full.db"), all_trials=True)
    target = make.filled(tmp_path / "target.db")
    chance = random.Random(mutate.__name__)
    lines: list[str] = []
    outcomes = {"refused whole": 0, "taken in part": 0, "taken whole": 0}
    for _ in range(120 if mutate is change_values else 50):
        before = export_json(target, all_trials=True)
        damaged = mutate(text, chance)
        try:
            report = import_json(target, damaged, policy=Policy.REPLACE, legality=lambda *_: None)
        except ExchangeError as error:
            lines.append(str(error))
            assert export_json(target, all_trials=True) == before
            outcomes["refused whole"] += 1
        else:
            lines += [reason for _, reason in report.refused]
            outcomes["taken in part" if report.refused else "taken whole"] += 1
            export_json(Store.open(target.location), all_trials=True)
    assert all(line and "\n" not in line for line in lines)
    if mutate is change_values:
        assert all(outcomes.values()), outcomes
    else:
        assert outcomes["taken in part"] == 0
        assert outcomes["refused whole"] >= 45, outcomes
