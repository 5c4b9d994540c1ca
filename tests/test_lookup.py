"""The miss ladder as pure logic: which row answers, at which grade, and never an illegal one."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem, TuningKey
from tunekit.lookup import RowTable, distance, how_to_tune
from tunekit.space import Violation
from tunekit.trial import Best, Choice, Fingerprint, Grade, Measurement, Origin, Provenance

H200 = KNOWN_DEVICES["sm_90"]
TWIN = dataclasses.replace(H200, name="NVIDIA H200 NVL")
SLICE = dataclasses.replace(H200, multiprocessors=60)
HERE = Fingerprint("source", "compiler")
CONFIG = Config("pointer", 64, 64, 32)


def problem(m: int, n: int = 4096, k: int = 4096, **fields) -> Problem:
    return Problem("matmul", m, n, k, fields.pop("dtype", "bfloat16"), **fields)


def row(
    of: Problem,
    *,
    gpu: str = H200.slug,
    config: Config = CONFIG,
    median_us: float = 10.0,
    fingerprint: Fingerprint = HERE,
    choice: Choice = Choice.TRITON,
) -> Best:
    measurement = Measurement(median_us, 9, 11, 9, 11, 9, 21, "test", 0.5)
    provenance = Provenance(fingerprint, "test", "0", "3", "2", "1", "GPU", "2026-01-01T00:00:00Z")
    return Best(TuningKey.of(of, gpu), choice, config, measurement, None, 10, 100, provenance)


def table(*rows: Best, device=H200, legality=lambda config, problem, device: None) -> RowTable:
    devices = {info.slug: info for info in (H200, TWIN, SLICE)}
    return RowTable(
        rows,
        devices,
        device=device,
        fingerprint=lambda family, variant: HERE if variant == "pointer" else None,
        legality=legality,
    )


def first(answering: RowTable, asked: Problem):
    return next(answering.answers(asked), None)


def test_the_problems_own_row_is_exact():
    answer = first(table(row(problem(16)), row(problem(17))), problem(16))
    assert answer.grade is Grade.EXACT
    assert answer.best.key.m == 16


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"layout": "nn"},
        {"aligned": False},
        {"out_dtype": "float32"},
        {"batch": 2},
    ],
)
def test_a_row_that_differs_in_anything_but_size_never_answers(change):
    assert first(table(row(problem(16))), problem(16, **change)) is None


def test_another_precision_never_answers():
    tf32 = row(problem(16, dtype="float32", precision="tf32"))
    assert first(table(tf32), problem(16, dtype="float32")) is None


def test_a_row_of_another_compiler_is_served_after_one_of_this():
    other = Fingerprint("source", "an older compiler")
    answers = table(row(problem(16), fingerprint=other, median_us=1.0), row(problem(16)))
    assert [a.grade for a in answers.answers(problem(16))] == [Grade.EXACT, Grade.OTHER_COMPILER]


def test_a_row_whose_kernel_has_changed_is_not_served():
    changed = row(problem(16), fingerprint=Fingerprint("older source", "compiler"))
    assert first(table(changed), problem(16)) is None
    assert first(table(changed), problem(17)) is None


def test_a_row_of_a_variant_that_is_gone_is_not_served():
    assert first(table(row(problem(16), config=Config("gone", 16, 16, 16))), problem(16)) is None


def test_an_illegal_row_is_passed_over_for_the_next_nearest():
    wide, narrow = Config("pointer", 256, 64, 32), Config("pointer", 16, 64, 32)

    def fits(config, problem, device):
        return Violation("oversized-tile", "") if config.block_m > problem.m * 2 else None

    answering = table(row(problem(32), config=wide), row(problem(64), config=narrow), legality=fits)
    answer = first(answering, problem(30))
    assert answer.grade is Grade.NEAREST
    assert answer.best.config == narrow


@pytest.mark.parametrize(
    ("asked", "found"), [(1, None), (2, None), (4, 16), (16, 16), (60, 16), (1000, None),
                         (1024, 4096), (16384, 4096), (100000, None)]
)  # fmt: skip
def test_the_nearest_row_is_within_a_factor_of_four(asked, found):
    answer = first(table(row(problem(16)), row(problem(4096))), problem(asked))
    assert (answer and answer.best.key.m) == found


def test_a_tie_in_distance_has_one_answer_whatever_the_order_of_rows():
    rows = [row(problem(8)), row(problem(32)), row(problem(16, n=2048)), row(problem(16, n=8192))]
    answers = set()
    for seed in range(10):
        random.Random(seed).shuffle(rows)
        answers.add(str(first(table(*rows), problem(16)).best.key))
    assert len(answers) == 1


def test_a_twin_under_another_name_answers_last_and_says_so():
    twin = row(problem(16), gpu=TWIN.slug)
    answer = first(table(twin), problem(16))
    assert answer.grade is Grade.OTHER_GPU
    near = first(table(twin, row(problem(20))), problem(16))
    assert near.grade is Grade.NEAREST
    assert near.best.key.gpu == H200.slug


def test_a_slice_of_the_card_never_answers_for_the_card():
    assert first(table(row(problem(16), gpu=SLICE.slug)), problem(16)) is None
    assert first(table(row(problem(16)), device=SLICE), problem(16)) is None


def test_a_row_of_an_unknown_device_never_answers():
    assert first(table(row(problem(16), gpu="some-gpu-sm90-132")), problem(16)) is None


def test_distance_is_symmetric_and_counts_every_size():
    a, b = problem(16, 4096, 1024), problem(32, 2048, 4096)
    assert distance(a, b) == distance(b, a) == 1 + 1 + 2
    assert distance(a, a) == 0


def test_the_advice_is_a_command_that_names_the_same_problem():
    key = TuningKey.of(problem(16), H200.slug)
    advice = how_to_tune(key, "/c.db")
    assert advice == "to tune it: tunekit tune --shape 16,4096,4096,bfloat16,nt --cache /c.db"


def test_the_advice_can_be_pasted_whatever_the_path():
    advice = how_to_tune(TuningKey.of(problem(16), H200.slug), "/my caches/c.db")
    assert advice.endswith("--cache '/my caches/c.db'")


def test_the_advice_for_what_a_command_cannot_name_is_a_shapes_entry():
    odd = dataclasses.replace(problem(16, dtype="float32", precision="tf32"), aligned=False)
    advice = how_to_tune(TuningKey.of(odd, H200.slug), "/c.db")
    assert "m: 16, n: 4096, k: 4096, dtype: float32, precision: tf32, layout: nt" in advice
    assert "aligned: false" in advice


def replayed(best: Best, *, imported: bool = False) -> Best:
    origin = Origin.IMPORTED if imported else Origin.REPLAYED
    provenance = dataclasses.replace(best.provenance, origin=origin)
    return dataclasses.replace(best, provenance=provenance, imported_replay=imported)


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("asked", [16, 20])
def test_rows_of_one_problem_come_best_first_and_what_was_replayed_last(imported, asked):
    old = Fingerprint("source", "an older compiler")
    fast = replayed(row(problem(16), median_us=1.0), imported=imported)
    others = [row(problem(16), fingerprint=old, median_us=us) for us in (2.0, 4.0, 3.0)]
    slow = row(problem(16), median_us=9.0)
    for seed in range(5):
        rows = [fast, slow, *others]
        random.Random(seed).shuffle(rows)
        found = [a.best.measurement.median_us for a in table(*rows).answers(problem(asked))]
        assert found == [9.0, 1.0, 2.0, 3.0, 4.0]
