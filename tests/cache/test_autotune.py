"""Triton's own timings become trials that nothing is served from."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from tunekit.cache import Policy, Store, export_json, import_json, import_sections
from tunekit.cache.autotune import (
    autotune_dtype,
    check_autotune_key,
    is_autotune,
    read_autotune,
)
from tunekit.errors import ExchangeError
from tunekit.key import Problem
from tunekit.lookup import RowTable
from tunekit.space import Violation
from tunekit.trial import Fingerprint, Origin, Status

ASSET = Path(__file__).parent / "assets" / "matmul_kernel.autotune.json"
"""Written by Triton 3.9's autotuner for three configs, the last of which did not run."""

WHEN = "2025-06-01T12:00:00Z"


@pytest.fixture
def document():
    return json.loads(ASSET.read_text(encoding="utf-8"))


@pytest.fixture
def key(make):
    return make.key(m=512, n=1024, k=256, dtype="float16", layout="nn")


@pytest.fixture
def take(store, make, key):
    """Import a document into the store, as trials of the key."""

    def run(document, *, policy=Policy.KEEP, dry_run=False, kernel="matmul_kernel"):
        options = {"device": make.device, "variant": "pointer", "created_at": WHEN}
        sections = read_autotune(document, key, kernel=kernel, **options)
        return import_sections(
            store, sections, policy=policy, legality=no_wide_tiles, dry_run=dry_run
        )

    return run


def no_wide_tiles(config, problem, device):
    return Violation("tile", "too wide") if config.block_n > 128 else None


def test_its_times_become_trials_in_microseconds(take, store, key, document, make):
    report = take(document)
    assert (report.added, report.replaced, report.kept) == (2, 0, 0)
    assert report.refused == [(3, "trial 3: times: it did not run, and the file does not say why")]
    (first, provenance), (second, _) = store.trials(key)
    assert str(first.config) == ("pointer 128x64x64 group=8 split_k=1 warps=8 stages=3")
    assert (second.config.block_m, second.config.num_warps, second.config.num_stages) == (64, 4, 4)
    assert first.status is Status.OK
    measured = first.measurement
    assert (measured.median_us, measured.p20_us, measured.p80_us) == pytest.approx((21, 20, 22))
    assert (measured.low_us, measured.high_us) == (measured.p20_us, measured.p80_us)
    assert measured.error_ratio is None
    assert not measured.final
    assert provenance.fingerprint == Fingerprint("triton-autotune:matmul_kernel", "unknown")
    assert provenance.protocol == measured.protocol == "triton-do_bench"
    assert (provenance.created_at, provenance.origin) == (WHEN, Origin.IMPORTED)
    assert provenance.device_name == make.device.name


def test_nothing_is_served_from_them_whatever_the_source_now(take, store, key, document, make):
    take(document)
    assert store.bests() == []
    assert store.best(key) == []
    for source in ("triton-autotune:matmul_kernel", "5eed"):
        table = RowTable(
            store.bests(),
            {make.device.slug: make.device},
            device=make.device,
            fingerprint=lambda family, variant, source=source: Fingerprint(source, "unknown"),
            legality=lambda *_: None,
        )
        assert [*table.answers(key.problem)] == []


def test_they_stand_beside_a_verified_trial_of_the_same_config(take, store, key, document, make):
    config = {"block_m": 128, "block_n": 64, "block_k": 64, "group_size": 8, "num_warps": 8}
    ours = make.trial(30.0, **config)
    store.add_trials(key, [(ours, make.provenance())])
    for policy in (Policy.FASTER, Policy.REPLACE):
        take(document, policy=policy)
    assert store.trials(key)[0] == (ours, make.provenance())
    assert len(store.trials(key)) == 3


def test_two_kernels_and_two_imports_of_one_file(take, store, key, document):
    assert take(document, dry_run=True).added == 2
    assert store.trials(key) == []
    assert take(document).added == 2
    assert take(document).kept == 2
    assert take(document, kernel="other_kernel").added == 2
    assert len(store.trials(key)) == 4


def test_they_are_exported_with_all_trials_and_come_back(take, store, document, tmp_path):
    take(document)
    text = export_json(store, all_trials=True)
    with Store.open(tmp_path / "other.db") as other:
        assert import_json(other, text, legality=no_wide_tiles).added == 2
        assert export_json(other, all_trials=True) == text


def setting(name, value):
    return lambda config, times: config.update({name: value})


def kwarg(name, value):
    return lambda config, times: config["kwargs"].update({name: value})


def without(name):
    return lambda config, times: config["kwargs"].pop(name)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (kwarg("USE_TMA", True), "'USE_TMA': no counterpart of the setting True is known"),
        (kwarg("waves_per_eu", 2), "'waves_per_eu': no counterpart"),
        (kwarg("BLOCK_SIZE_N", 256), "the config is not legal for .*: tile: too wide"),
        (kwarg("BLOCK_M", 64), "kwargs: block_m is given twice"),
        (kwarg("BLOCK_SIZE_M", "64"), "block_m"),
        (kwarg("BLOCK_SIZE_M", 10**400), "block_m"),
        (without("BLOCK_SIZE_K"), r"kwargs: there is no block_k \(BLOCK_K, BLOCK_SIZE_K"),
        (setting("num_ctas", 2), "'num_ctas': no counterpart of the setting 2"),
        (setting("maxnreg", 128), "'maxnreg'"),
        (setting("ir_override", "a.ttgir"), "'ir_override'"),
        (setting("num_warps", None), "num_warps"),
        (setting("num_stages", 0), "num_stages"),
        (setting("kwargs", [64, 64]), "kwargs: expected an object"),
        (lambda config, times: times.clear(), "times: expected the median"),
        (lambda config, times: times.append(1.0), "times: expected the median"),
        (lambda config, times: times.__setitem__(0, "fast"), "times: expected the median"),
        (lambda config, times: times.__setitem__(0, -1.0), "times: expected positive"),
        (lambda config, times: times.__setitem__(0, float("nan")), "times: expected positive"),
        (lambda config, times: times.__setitem__(0, 10**400), "times: expected positive"),
        (lambda config, times: times.__setitem__(1, 5.0), "out of order|outside"),
    ],
)
def test_what_does_not_map_is_refused_by_row_with_the_reason(take, document, harm, words):
    harm(*document["configs_timings"][1])
    report = take(document)
    assert [number for number, _ in report.refused] == [2, 3]
    reason = report.refused[0][1]
    assert re.search(words, reason), reason
    assert "\n" not in reason
    assert report.added == 1


@pytest.mark.parametrize("odd", [None, 5, "x", [], [1], {}, [{}, [1, 1, 1]], [[], {}]])
def test_a_row_that_is_no_pair_is_refused(take, document, odd):
    document["configs_timings"].append(odd)
    assert [number for number, _ in take(document).refused] == [3, 4]


@pytest.mark.parametrize(
    "names",
    [("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"), ("BM", "BN", "BK", "group_size_m")],
)
def test_the_names_people_use_mean_the_same(take, store, key, document, names):
    usual = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
    other = copy.deepcopy(document)
    for config, _ in other["configs_timings"]:
        config["kwargs"] = {n: config["kwargs"][u] for n, u in zip(names, usual, strict=True)}
        config["enable_warp_specialization"] = False  # what is off, in older versions
    take(document)
    assert take(other).kept == 2


def test_a_single_time_is_taken_for_all_quantiles(take, store, key, document):
    document["configs_timings"] = [[document["configs_timings"][0][0], 0.5]]
    take(document)
    ((trial, _),) = store.trials(key)
    assert (trial.measurement.p20_us, trial.measurement.p80_us) == (500.0, 500.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": 511}, "has no M=511"),
        ({"n": 512}, None),
        ({"k": 4096}, "has no K=4096"),
        ({"dtype": "bfloat16"}, "its tensors are float16, not bfloat16"),
    ],
)
def test_a_file_of_another_product_is_refused(document, change, words):
    sizes = {"m": 512, "n": 1024, "k": 256, "dtype": "float16"}
    problem = Problem("matmul", **{**sizes, **change})
    if words is None:  # the sizes stand in the key, in an order that only its author knows
        check_autotune_key(document, problem)
        return
    with pytest.raises(ExchangeError, match=words):
        check_autotune_key(document, problem)


def test_a_key_that_says_nothing_refuses_nothing(document):
    for key in ([], [True, False, "torch.float16"], [2048]):
        document["key"] = key
        check_autotune_key(document, Problem("matmul", 5, 6, 7, "float16"))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "key: expected a list"),
        ({"M": 1}, "key: expected a list"),
        (["torch.float16", "torch.float32"], "of several dtypes"),
        (["torch.complex64"], "unknown dtype"),
    ],
)
def test_a_key_that_cannot_be_is_one_line(document, key, words):
    document["key"] = key
    with pytest.raises(ExchangeError, match=words):
        autotune_dtype(document)


def test_what_is_told_by_its_contents(document):
    assert is_autotune(document)
    assert autotune_dtype(document) == "float16"
    for other in ({}, [], None, "configs_timings", {"format": "tunekit-cache"}):
        assert not is_autotune(other)


def test_timings_that_are_no_list_are_one_line(take):
    with pytest.raises(ExchangeError, match="configs_timings: expected a list"):
        take({"key": [], "configs_timings": {"a": 1}})
