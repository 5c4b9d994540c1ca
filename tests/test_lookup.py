"""The miss ladder as pure logic: which row answers, at which grade, and never an illegal one."""

from __future__ import annotations

import dataclasses
import random
import shlex

import pytest

from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.key import Problem, TuningKey
from tunekit.lookup import DecodedRow, RowTable, distance, how_to_tune
from tunekit.shapes import parse_shape, read_shapes
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


def table(
    *rows: Best, device=H200, versions=None, legality=lambda config, problem, device: None
) -> RowTable:
    devices = {info.slug: info for info in (H200, TWIN, SLICE)}
    return RowTable(
        map(DecodedRow, rows),
        devices,
        device=device,
        fingerprint=lambda family, variant: HERE if variant == "pointer" else None,
        legality=legality,
        versions=versions,
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
        {"scaling": "row"},
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


ASKED = [
    problem(16, dtype="int8", out_dtype="int32"),
    problem(16, dtype="int8"),
    problem(16, out_dtype="float32"),
    problem(16, batch=3),
    problem(16, aligned=False),
    problem(16, dtype="float32", precision="tf32", aligned=False),
    problem(16, dtype="float8_e4m3fn", out_dtype="bfloat16", scaling="row"),
    problem(15, 15, 15),
    problem(15, 15, 15, aligned=False),
    problem(15, 15, 15, batch=2),
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_advice_names_the_same_problem_in_a_command_or_else_in_a_file(asked):
    advice = how_to_tune(TuningKey.of(asked, H200.slug), "/c.db").removeprefix("to tune it: ")
    # The first is not how such operands lie by themselves, the second not what they usually give.
    if asked in (problem(15, 15, 15), problem(16, dtype="int8")):
        entry = advice.removeprefix("put - ").split(" under shapes: ")[0]
        [shape] = read_shapes(f"shapes: [{entry}]", path="file")
    else:
        words = shlex.split(advice)
        assert words[:3] == ["tunekit", "tune", "--shape"]
        shape = parse_shape(words[3])
    assert shape.problem == asked


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


@pytest.mark.parametrize("asked", [16, 20])
def test_an_imported_row_goes_before_one_made_here_only_where_it_fits_better(asked):
    def imported(best: Best) -> Best:
        provenance = dataclasses.replace(best.provenance, origin=Origin.IMPORTED)
        return dataclasses.replace(best, provenance=provenance)

    old, older = (Fingerprint("source", f"compiler-{number}") for number in (1, 2))
    own = row(problem(16), fingerprint=old, median_us=9.0)
    faster = imported(row(problem(16), fingerprint=older, median_us=2.0))
    for rows in ([own, faster], [faster, own]):
        found = [a.best for a in table(*rows).answers(problem(asked))]
        assert found == [own, faster]
    fitting = imported(row(problem(16), median_us=30.0))
    assert first(table(own, faster, fitting), problem(asked)).best == fitting


def told(answer) -> list[str]:
    return [str(difference) for difference in answer.differences]


TRITON_36 = "triton-3.6.0+ptxas-12.8.93"
TRITON_39 = "triton-3.9.0+ptxas-12.9.86"


def here_39(family: str, variant: str) -> Fingerprint:
    return Fingerprint("source", TRITON_39)


def test_an_exact_row_differs_in_nothing():
    assert first(table(row(problem(16))), problem(16)).differences == ()


def test_a_row_of_another_compiler_says_which_of_its_parts_changed():
    old = row(problem(16), fingerprint=Fingerprint("source", TRITON_36))
    answering = RowTable(
        [DecodedRow(old)], {}, device=H200, fingerprint=here_39, legality=lambda *_: None
    )
    answer = first(answering, problem(16))
    assert answer.grade is Grade.OTHER_COMPILER
    assert told(answer) == ["triton 3.6.0 -> 3.9.0", "ptxas 12.8.93 -> 12.9.86"]


def test_a_nearest_row_says_which_sizes_and_also_which_compiler_are_others():
    other = row(problem(4096, n=2048), fingerprint=Fingerprint("source", "compiler-2"))
    answer = first(table(other), problem(4000, n=2048))
    assert answer.grade is Grade.NEAREST
    assert told(answer)[0] == "m 4096 -> 4000"
    assert [difference.field for difference in answer.differences] == ["m", "compiler"]


def test_a_twins_row_says_which_product_it_is_from():
    answer = first(table(row(problem(16), gpu=TWIN.slug)), problem(16))
    assert told(answer) == ["gpu NVIDIA H200 NVL -> NVIDIA H200"]
    near = first(table(row(problem(16), gpu=TWIN.slug)), problem(20))
    assert near.grade is Grade.OTHER_GPU
    assert told(near) == ["m 16 -> 20", "gpu NVIDIA H200 NVL -> NVIDIA H200"]


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ({}, []),
        ({"torch": "2", "driver": "1"}, []),
        ({"torch": "2.13.0", "driver": "1"}, ["torch 2 -> 2.13.0"]),
        ({"torch": "2", "driver": "580.1"}, ["driver 1 -> 580.1"]),
        ({"torch": "2", "driver": "unknown"}, []),
    ],
)
def test_another_torch_or_driver_changes_no_grade_and_is_told(here, expected):
    answer = first(table(row(problem(16)), versions=here), problem(16))
    assert answer.grade is Grade.EXACT
    assert told(answer) == expected


def test_another_triton_is_another_compiler_and_a_version_it_does_not_know_is_none():
    unknown = row(problem(16))
    unknown = dataclasses.replace(
        unknown, provenance=dataclasses.replace(unknown.provenance, driver="unknown", torch="")
    )
    answer = first(table(unknown, versions={"torch": "2", "driver": "1"}), problem(16))
    assert (answer.grade, answer.differences) == (Grade.EXACT, ())


@pytest.mark.parametrize("ratio", [None, 1.5])
def test_a_row_whose_result_was_not_found_right_is_never_served(ratio):
    doubtful = row(problem(16), median_us=1.0)
    measurement = dataclasses.replace(doubtful.measurement, error_ratio=ratio)
    doubtful = dataclasses.replace(doubtful, measurement=measurement)
    assert first(table(doubtful), problem(16)) is None
    assert first(table(doubtful), problem(20)) is None
    good = row(problem(16), fingerprint=Fingerprint("source", "an older compiler"))
    assert first(table(doubtful, good), problem(16)).best == good


def test_every_answer_is_the_same_whatever_the_order_of_rows():
    third = dataclasses.replace(H200, name="NVIDIA GH200 480GB")
    devices = {info.slug: info for info in (H200, TWIN, third)}
    old = Fingerprint("source", "an older compiler")
    rows = [
        row(problem(m, n=n), gpu=gpu.slug, fingerprint=mark, median_us=us)
        for m, n in ((16, 4096), (8, 4096), (32, 4096), (16, 2048), (16, 8192), (11, 4096))
        for gpu in (H200, TWIN, third)
        for mark, us in ((HERE, 10.0), (old, 5.0))
        if not (gpu is H200 and m == 16)
    ]
    found = set()
    for seed in range(20):
        random.Random(seed).shuffle(rows)
        answering = RowTable(
            map(DecodedRow, rows),
            devices,
            device=H200,
            fingerprint=lambda family, variant: HERE,
            legality=lambda *_: None,
        )
        found.add(tuple(answering.answers(problem(16))))
    (answers,) = found
    assert len(answers) == len(rows)


def test_the_nearest_rule_holds_for_any_stream_of_sizes():
    tuned = [row(problem(m)) for m in (16, 4096)]
    answering = table(*tuned)
    for asked in random.Random(7).sample(range(1, 20_000), 500):
        near = [b for b in tuned if distance(b.key.problem, problem(asked)) <= 2]
        near.sort(key=lambda b: distance(b.key.problem, problem(asked)))
        answer = first(answering, problem(asked))
        assert (answer and answer.best) == (near[0] if near else None)


class Unreadable:
    """A row that says where it belongs and cannot be decoded."""

    def __init__(self, place):
        self.place = place

    def read(self):
        return None


def test_a_damaged_row_is_passed_over_and_the_others_are_served():
    good = DecodedRow(row(problem(16)))
    bad_value, bad_sizes = (
        Unreadable(good.place),
        Unreadable(("matmul", None, "x", 1.5, *good.place[4:])),
    )
    answering = RowTable(
        [bad_sizes, bad_value, good],
        {},
        device=H200,
        fingerprint=lambda family, variant: HERE,
        legality=lambda *_: None,
    )
    assert first(answering, problem(16)).best == good.best
    assert first(answering, problem(17)).best == good.best


def test_a_row_is_decoded_only_if_it_may_answer():
    class Counting(DecodedRow):
        reads = 0

        def read(self):
            Counting.reads += 1
            return super().read()

    rows = [
        Counting(row(problem(m, dtype=t))) for m in range(1, 500) for t in ("float16", "bfloat16")
    ]
    answering = RowTable(
        rows, {}, device=H200, fingerprint=lambda *_: HERE, legality=lambda *_: None
    )
    assert Counting.reads == 0
    assert first(answering, problem(250)).grade is Grade.EXACT
    assert Counting.reads == 1
    assert first(answering, problem(600)).best.key.m == 499
    assert Counting.reads == 2


def test_two_gpus_of_one_machine_have_rows_of_their_own():
    a10 = KNOWN_DEVICES["sm_86"]
    tuned = row(problem(16), gpu=H200.slug)
    devices = {info.slug: info for info in (H200, a10)}
    ask = {"fingerprint": lambda *_: HERE, "legality": lambda *_: None}
    first_gpu = RowTable([DecodedRow(tuned)], devices, device=H200, **ask)
    second_gpu = RowTable([DecodedRow(tuned)], devices, device=a10, **ask)
    assert first(first_gpu, problem(16)).grade is Grade.EXACT
    assert first(second_gpu, problem(16)) is None


def test_a_row_of_another_shape_never_counts_as_this_one():
    tuned = table(row(problem(4096, n=4096, k=4096)))
    assert first(tuned, problem(4096, n=8192, k=8192)).grade is Grade.NEAREST
    assert first(tuned, problem(4096, n=16384, k=8192)) is None
