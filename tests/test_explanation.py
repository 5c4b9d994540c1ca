"""What `tunekit explain` says: what would run, why, what was tried, and what would improve it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.cli import main
from tunekit.cli_explain import parse_words
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.explanation import explain
from tunekit.kernels import current_fingerprint
from tunekit.key import Problem, TuningKey
from tunekit.table import explain_command
from tunekit.trial import (
    Best,
    Choice,
    Distance,
    Grade,
    Measurement,
    Origin,
    Provenance,
    Status,
    Trial,
)

H200 = KNOWN_DEVICES["sm_90"]
PROBLEM = Problem("matmul", 512, 4096, 4096, "bfloat16")
BEST = Config("pointer", 128, 128, 64, group_size=8, num_warps=8, num_stages=3)
NEXT = replace(BEST, num_stages=4)
SLOW = replace(BEST, block_n=64)
BROKEN = replace(BEST, block_n=256)


def measured(us, *, final=True, error_ratio=0.25):
    return Measurement(us, us - 0.1, us + 0.1, us, us, us, 41, "test-1", error_ratio, final)


def provenance(**changes):
    made = Provenance(
        current_fingerprint("matmul", "pointer"),
        *("test-1", "0.1.0", "3.9.0", "unknown", "580.1", H200.name, "2026-01-02T03:04:05Z"),
    )
    return replace(made, **changes)


def best(problem=PROBLEM, *, choice=Choice.TRITON, made=None, **changes):
    row = Best(
        TuningKey.of(problem, H200.slug), choice, BEST, measured(20.0),
        measured(25.0, error_ratio=None), 4, 100, made or provenance(),
        distance=Distance(0.005, 0.025),
    )  # fmt: skip
    return replace(row, **changes)


TRIALS = (
    Trial(BROKEN, Status.OUT_OF_RESOURCES, error="shared memory"),
    Trial(SLOW, Status.OK, measured(19.0, final=False)),
    Trial(NEXT, Status.OK, measured(21.0)),
    Trial(BEST, Status.OK, measured(20.0)),
)


@pytest.fixture
def tuned(own_cache):
    """A store with one row of the H200 and its trials."""
    with Store.open(own_cache) as store:
        store.put_device(H200)
        row = best()
        store.add_trials(row.key, [(trial, row.provenance) for trial in TRIALS])
        store.put_best(row)
        yield store


def test_a_row_of_ones_own_is_explained_whole(tuned):
    found = explain(tuned, PROBLEM, H200)
    assert (found.runs, found.answer.grade) == (Choice.TRITON, Grade.EXACT)
    assert found.why == "Triton was faster than the vendor"
    # the screening of SLOW was on a cooler card: it is no rival of a finalist
    assert found.rival.config == NEXT
    assert found.rival_lost_by == pytest.approx(0.05)
    assert found.findings.failures == [("out-of-resources", 1)]
    assert found.improve.endswith(f"--cache {tuned.location} --trials 8")


def test_where_the_vendor_was_faster_it_runs(tuned):
    tuned.put_best(best(choice=Choice.VENDOR), force=True)
    found = explain(tuned, PROBLEM, H200)
    assert found.runs is Choice.VENDOR
    assert "not clearly faster" in found.why


def test_a_space_that_was_tried_whole_cannot_be_improved(tuned):
    tuned.put_best(best(trials=100), force=True)
    assert explain(tuned, PROBLEM, H200).improve is None


def test_another_problems_row_is_named_and_the_cure_is_to_tune(tuned):
    asked = replace(PROBLEM, m=600)
    found = explain(tuned, asked, H200)
    assert found.answer.grade is Grade.NEAREST
    assert found.why.endswith("as tuned for 512x4096x4096 bfloat16 nt")
    assert found.findings is None
    assert found.rival is None
    assert "tunekit tune --shape 600,4096,4096,bfloat16,nt" in found.improve


def test_without_any_row_the_vendor_runs(tuned):
    found = explain(tuned, replace(PROBLEM, layout="nn"), H200)
    assert found.answer is None
    assert (found.runs, found.why) == (Choice.VENDOR, "no row of the cache serves it")
    assert found.to_dict()["row"] is None
    assert "tunekit tune --shape 512,4096,4096,bfloat16,nn" in found.improve


def test_a_row_of_another_compiler_is_to_be_verified(tuned):
    fingerprint = current_fingerprint("matmul", "pointer")
    made = provenance(fingerprint=replace(fingerprint, compiler="triton-3.5.0"))
    other = replace(PROBLEM, n=8192)
    tuned.put_best(best(other, made=made))
    found = explain(tuned, other, H200)
    assert found.answer.grade is Grade.OTHER_COMPILER
    assert "tunekit tune --stale --shape" in found.improve
    assert any(difference.field == "triton" for difference in found.answer.differences)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": replace(BEST, variant="gone")}, "there is no kernel 'gone' here"),
        ({"measurement": measured(20.0, error_ratio=None)}, "never found right"),
        ({"config": replace(BEST, block_m=48)}, "not legal here"),
    ],
)
def test_rows_that_do_not_serve_say_why(tuned, changes, reason):
    other = replace(PROBLEM, k=8192)
    tuned.put_best(best(other, **changes))
    found = explain(tuned, other, H200)
    own = [one for one in found.passed_over if one.best.key == found.key]
    assert [reason in one.reason for one in own] == [True]
    assert reason in json.dumps(found.to_dict())


def test_a_kernel_that_changed_is_not_served(tuned):
    fingerprint = current_fingerprint("matmul", "pointer")
    made = provenance(fingerprint=replace(fingerprint, source="0" * 16))
    other = replace(PROBLEM, k=8192)
    tuned.put_best(best(other, made=made))
    reasons = [one.reason for one in explain(tuned, other, H200).passed_over]
    assert reasons[0].startswith("other-source: kernel pointer was 0000000000000000, is ")


def test_the_command_says_it_in_lines_with_units(tuned, capsys, monkeypatch):
    monkeypatch.setattr("tunekit.which_gpu.cuda_available", lambda: False)
    assert main(["explain", "512", "4096", "4096"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == f"512x4096x4096 bfloat16 nt on NVIDIA H200 ({H200.slug})"
    for part in (
        "triton, grade exact",
        "20.00 us (95 %: 19.90-20.10), 859.0 TFLOP/s",
        "25.00 us (95 %: 24.90-25.10): ratio 1.250",
        "21.00 us (final), +5.0 %",
        "4 of 100 legal configs, 1 failed",
        "0.5 % expected; in nine of ten cases at most 2.5 %",
        "1 out-of-resources: shared memory",
        "19.00 us at 2",
    ):
        assert part in text


@pytest.mark.parametrize(
    "text",
    [
        "1023x1023x1023 bfloat16 nt unaligned",
        "8x64x64x64 int8 nn -> int32",
        "64x64x64 float32 nt tf32",
    ],
)
def test_a_problem_is_named_as_show_prints_it(text):
    problem = parse_words(tuple(text.split()), None, None)
    assert str(problem) == text
    assert explain_command(problem).removeprefix("tunekit explain ").strip("'") == text


def test_json_is_one_document_with_the_same_numbers(tuned, capsys):
    argv = ["explain", "512", "4096", "4096", "--gpu", H200.slug, "--json"]
    assert main(argv) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["runs"], plain["grade"]) == ("triton", "exact")
    assert plain["row"]["triton"] == {"median_us": 20.0, "low_us": 19.9, "high_us": 20.1}
    assert plain["row"]["ratio"] == 1.25
    assert plain["next_best"]["slower_by"] == pytest.approx(0.05)
    assert plain["row"]["distance"] == {"expected": 0.005, "bound": 0.025}
    assert plain["tried"]["failed"][0]["reason"] == "shared memory"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["512", "512", "512", "--dtype", "float7"], "unknown dtype"),
        (["512", "512", "512", "--layout", "xx"], "layout"),
        (["512", "512", "512", "--gpu", "nothing"], H200.slug),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tuned, capsys, argv, part):
    assert main(["explain", *argv]) == 1
    err = capsys.readouterr().err
    assert part in err
    assert err.count("\n") == 1


def test_without_a_gpu_and_with_several_in_the_cache_one_has_to_be_named(
    tuned, capsys, monkeypatch
):
    monkeypatch.setattr("tunekit.which_gpu.cuda_available", lambda: False)
    tuned.put_device(KNOWN_DEVICES["sm_80"])
    assert main(["explain", "512", "4096", "4096"]) == 1
    assert "name one with --gpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("512", "4096", "4096"),
        ("512x4096x4096",),
        ("512x4096x4096", "bfloat16", "nt"),
        ("512,4096,4096,bfloat16",),
        ("512", "4096", "4096", "--layout", "nt"),
    ],
)
def test_a_problem_may_be_written_as_show_prints_it(tuned, capsys, words):
    assert main(["explain", *words, "--gpu", H200.slug]) == 0
    assert capsys.readouterr().out.startswith("512x4096x4096 bfloat16 nt on ")


@pytest.mark.parametrize(
    ("dtype", "why"),
    [("int32", "int32 operands are not supported"), ("float8_e5m2", "give out_dtype bfloat16 or")],
)
def test_what_no_kernel_computes_is_said_and_no_command_that_would_fail(dtype, why, capsys):
    assert main(["explain", "64", "64", "64", dtype]) == 1
    assert why in capsys.readouterr().err
    assert main(["tune", "--shape", f"64,64,64,{dtype}", "--device", "replay"]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("words", [("512",), ("512", "x", "4"), ("1", "2", "3", "a", "b", "c")])
def test_what_is_no_problem_is_wrong_usage_with_an_example(tuned, capsys, words):
    assert main(["explain", *words]) == 2
    assert "tunekit explain 512 4096 4096" in capsys.readouterr().err


def test_a_replayed_row_is_improved_on_a_gpu(tuned, capsys):
    tuned.put_best(best(made=provenance(origin=Origin.REPLAYED)), force=True)
    assert main(["explain", "512", "4096", "4096", "--gpu", H200.slug]) == 0
    out = capsys.readouterr().out
    assert "to improve    on a GPU: tunekit tune --shape 512,4096,4096,bfloat16,nt --cache" in out


def test_without_a_cache_the_vendor_runs_and_the_command_is_given(own_cache, capsys):
    assert main(["explain", "512", "4096", "4096"]) == 1
    err = capsys.readouterr().err
    assert "the vendor's library runs 512x4096x4096 bfloat16 nt" in err
    assert f"tunekit tune --shape 512,4096,4096,bfloat16,nt --cache {own_cache}" in err
    assert not own_cache.exists()


def test_a_row_that_came_without_its_trials_says_itself_how_many_there_were(tuned, capsys):
    other = replace(PROBLEM, m=1024)
    tuned.put_best(best(other, trials=76, space_size=294, distance=Distance(0.002, 0.011)))
    assert main(["explain", "1024", "4096", "4096", "--gpu", H200.slug]) == 0
    out = capsys.readouterr().out
    assert "tried         76 of 294 legal configs, says its row" in out
    assert "off best      0.2 % expected; in nine of ten cases at most 1.1 %" in out
