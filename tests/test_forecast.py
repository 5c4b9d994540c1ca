"""`tunekit.explain` and `tunekit.warmup`: what would run, said and made ready, not run."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tunekit
from tunekit import dispatch, products, scaled, widening
from tunekit.cache import Store
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import ConfigError, DeviceError, MissError, ProblemError, StoreError
from tunekit.kernels.matmul_family import MATMUL
from tunekit.kernels.operands import describe
from tunekit.key import Problem
from tunekit.trial import Choice, Grade

H200 = KNOWN_DEVICES["sm_90"]
CONFIG = Config("pointer", 16, 32, 32, num_stages=2)
OTHER = Config("pointer", 32, 32, 32, num_stages=2)
ILLEGAL = Config("pointer", 256, 256, 256, num_stages=6)


pytestmark = pytest.mark.usefixtures("forget")


@pytest.fixture
def no_launch(monkeypatch):
    monkeypatch.setattr(MATMUL, "bind", lambda *a: pytest.fail("a launch was prepared"))


def operands(m=48, k=64, n=64):
    return torch.randn(m, k).half(), torch.randn(n, k).half().t()


@pytest.fixture
def put(own_cache):
    """Return a function that puts rows into the cache."""

    def rows(*bests):
        with Store.open(own_cache) as store:
            store.put_device(H200)
            for one in bests:
                assert store.put_best(one, force=True)

    return rows


def test_a_row_of_its_own_says_all_of_it(put, best_row, pretend_gpu, no_launch):
    a, b = operands()
    put(best_row(describe(a, b), CONFIG))
    found = tunekit.explain(a, b)
    assert (found.runs, found.grade, found.config) == (Choice.TRITON, Grade.EXACT, CONFIG)
    assert (found.median_us, found.low_us, found.high_us, found.vendor_us) == (10, 9, 11, 12)
    assert found.ratio == pytest.approx(1.2)
    assert (found.cure, found.passed_over) == (None, ())
    assert found == tunekit.explain(describe(a, b), device=H200)
    text = str(found)
    assert "its own row says that Triton was faster" in text
    assert "10.00 us (9.00 to 11.00)" in text
    assert json.loads(json.dumps(found.to_dict()))["config"]["block_m"] == 16
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.runs = Choice.VENDOR


def test_a_vendor_that_was_faster_runs_unless_told_otherwise(put, best_row, pretend_gpu):
    a, b = operands()
    put(best_row(describe(a, b), CONFIG, choice=Choice.VENDOR, vendor_us=8.0))
    assert tunekit.explain(a, b).runs is Choice.VENDOR
    assert "not slower" in tunekit.explain(a, b).why
    forced = tunekit.explain(a, b, backend="triton")
    assert (forced.runs, forced.config) == (Choice.TRITON, CONFIG)
    assert "backend=triton" in forced.why


def test_a_borrowed_row_names_what_differs_and_the_cure(put, best_row, pretend_gpu, own_cache):
    put(best_row(describe(*operands(56)), CONFIG))
    found = tunekit.explain(*operands(48))
    assert (found.grade, found.row.m, found.key.m) == (Grade.NEAREST, 56, 48)
    assert [str(one) for one in found.differences if one.field == "m"] == ["m 56 -> 48"]
    assert f"tunekit tune --shape 48,64,64,float16,nt --cache {own_cache}" in found.cure


def test_rows_that_do_not_serve_are_named_with_the_reason(put, best_row, pretend_gpu):
    a, b = operands()
    changed = best_row(describe(a, b), CONFIG)
    mark = dataclasses.replace(changed.provenance.fingerprint, source="0" * 16)
    changed = dataclasses.replace(
        changed, provenance=dataclasses.replace(changed.provenance, fingerprint=mark)
    )
    put(
        changed,
        best_row(describe(*operands(56)), ILLEGAL),
        best_row(describe(*operands(40)), OTHER),
    )
    found = tunekit.explain(a, b)
    assert found.config == OTHER
    reasons = {one.best.config: one.reason for one in found.passed_over}
    assert reasons[CONFIG].startswith("other-source: kernel pointer was 0000")
    assert reasons[ILLEGAL].startswith("not legal here: ")
    with tunekit.policy(deterministic=True):
        found = tunekit.explain(a, b)
    assert (found.runs, found.config) == (Choice.VENDOR, None)
    assert "nearest: not this problem's own" in [one.reason for one in found.passed_over]


def test_nothing_is_launched_counted_or_told(pretend_gpu, no_launch, recwarn):
    found = tunekit.explain(*operands())
    assert (found.runs, found.config, found.grade) == (Choice.VENDOR, None, None)
    assert "torch serves it" in found.why
    assert "tunekit tune" in found.cure
    assert dispatch.miss_counts() == {}
    assert not recwarn.list


def test_what_is_explained_is_what_runs(put, best_row, pretend_gpu):
    put(
        best_row(describe(*operands(56)), CONFIG),
        best_row(describe(*operands(100)), OTHER, choice=Choice.VENDOR),
    )
    for m in (1, 30, 48, 56, 90, 100, 400):
        for backend in ("auto", "triton"):
            a, b = operands(m)
            found = tunekit.explain(a, b, backend=backend)
            tunekit.matmul(a, b, backend=backend, on_miss="fallback")
            with tunekit.policy(backend=backend):
                served = dispatch.served_for(a, b)
            assert (served.launch is not None) is (found.runs is Choice.TRITON)
            assert (served.answer.best.config if served.answer else None) == found.config


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (torch.ones(3, 4), torch.ones(4, 5).double(), "dtypes"),
        (torch.ones(3, 4), torch.ones(4, 5), "CPU"),
        (torch.ones(3, 4), torch.ones(3, 5), "cannot be multiplied"),
        (torch.ones(3, 4).to_sparse(), torch.ones(4, 5), "memory"),
    ],
)
def test_operands_that_are_torchs_say_why(a, b, why):
    found = tunekit.explain(a, b)
    assert (found.runs, found.key) == (Choice.VENDOR, None)
    assert why in found.why


def test_uneven_matrices_and_vectors_are_torchs(pretend_gpu):
    uneven = torch.ones(3, 2, 3, 4).transpose(0, 1), torch.ones(2, 3, 4, 5)
    assert "not evenly spaced" in tunekit.explain(*uneven).why
    assert tunekit.explain(torch.ones(2, 3, 4), torch.ones(2, 4, 5)).key.batch == 2
    assert "dot product" in tunekit.explain(torch.ones(3), torch.ones(3)).why
    assert tunekit.explain(torch.ones(2, 3, 4), torch.ones(4, 5)).key.m == 6


def test_a_policy_is_explained(pretend_gpu):
    a, b = operands()
    assert "vendor" in tunekit.explain(a, b, backend="vendor").why
    with tunekit.policy(config=CONFIG):
        assert tunekit.explain(a, b).config == CONFIG


def test_a_problem_without_a_gpu_needs_one_named():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError):
        tunekit.explain(Problem("matmul", 8, 8, 8, "float16"))


def test_warming_up_leaves_nothing_to_prepare(put, best_row, pretend_gpu, monkeypatch):
    problems = [Problem("matmul", m, 64, 64, "float16") for m in (48, 56, 300)]
    put(best_row(problems[0], CONFIG))
    with tunekit.policy(on_miss="fallback"):
        found = tunekit.warmup([*problems, operands(40)], device="cpu")
        assert [one.config for one in found] == [CONFIG, CONFIG, None, CONFIG]
        assert set(dispatch.miss_counts().values()) == {0}
        monkeypatch.setattr(products, "prepare", lambda *a: pytest.fail("prepared again"))
        for m in (48, 56, 300, 40):
            tunekit.matmul(*operands(m))


def test_warming_up_tells_a_miss(pretend_gpu):
    with pytest.raises(MissError, match="tunekit tune"):
        tunekit.warmup([operands()], on_miss="error")
    with pytest.warns(tunekit.MissWarning):
        tunekit.warmup([operands()])


def test_what_is_explained_under_autocast_is_what_runs(put, best_row, pretend_gpu):
    a, b = torch.randn(48, 64), torch.randn(64, 64).t()
    put(best_row(describe(a.bfloat16(), b.bfloat16()), CONFIG))
    with torch.autocast("cpu", torch.bfloat16):
        found = tunekit.explain(a, b)
        (warmed,) = tunekit.warmup([(a, b)], on_miss="error")
        mixed = tunekit.explain(a.bfloat16(), b)
        assert tunekit.matmul(a, b, on_miss="error").dtype is torch.bfloat16
    assert (found.key.dtype, found.config, found.grade) == ("bfloat16", CONFIG, Grade.EXACT)
    assert found == warmed == mixed
    assert tunekit.explain(a, b).key.dtype == "float32"
    assert "dtypes" in tunekit.explain(a.bfloat16(), b).why


def test_by_triton_uneven_matrices_are_explained_by_their_first(pretend_gpu):
    a, b = torch.randn(3, 2, 48, 64).half().transpose(0, 1), torch.randn(2, 3, 64, 80).half()
    found = tunekit.explain(a, b, backend="triton")
    assert found.runs is Choice.TRITON
    assert "one by one" in found.why
    tunekit.matmul(a, b, backend="triton", on_miss="fallback")
    assert set(products.STATE.misses) <= {found.key}
    assert {one.key for one in products.STATE.served.values()} == {found.key}


def test_by_triton_what_is_no_kernels_is_matmuls_error_and_a_negative_is_copied(pretend_gpu):
    a, b = operands()
    for call in (tunekit.explain, tunekit.matmul):
        with pytest.raises(ProblemError, match="dtypes"):
            call(a.double(), b.double(), backend="triton")
    negative = torch._neg_view(a)
    assert "memory" in tunekit.explain(negative, b).why
    assert tunekit.explain(negative, b, backend="triton") == tunekit.explain(a, b, backend="triton")
    with pytest.raises(ProblemError, match="dtypes"):
        tunekit.warmup([(a.double(), b.double())], backend="triton")


def test_who_watches_is_explained_torchs_product(pretend_gpu):
    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    a, b = operands()
    with Watching():
        assert "watches" in tunekit.explain(a, b).why
        assert tunekit.explain(a, b, backend="triton").runs is Choice.TRITON
    with FlopCounterMode(display=False):
        assert "watches" in tunekit.explain(a, b).why
        with pytest.raises(ProblemError, match="watched"):
            tunekit.explain(a, b, backend="triton")
    with torch.device("meta"):
        assert tunekit.explain(a, b) == tunekit.explain(a, b)
        assert tunekit.explain(a, b).key is not None


@pytest.mark.parametrize("call", [tunekit.explain, tunekit.matmul])
def test_what_a_policy_makes_an_error_is_one_here_too(pretend_gpu, own_cache, call):
    a, b = operands()
    with tunekit.policy(config=ILLEGAL), pytest.raises(ConfigError, match="is not legal"):
        call(a, b)
    own_cache.write_text("no database" * 500)
    tunekit.reload()
    with tunekit.policy(deterministic=True), pytest.raises(StoreError, match="cannot be read"):
        call(a, b)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda a, p: tunekit.explain(a), "two tensors or one Problem, not Tensor and None"),
        (lambda a, p: tunekit.explain(8, 8), "not int and int"),
        (lambda a, p: tunekit.explain(p, a), "not Problem and Tensor"),
        (lambda a, p: tunekit.explain(a.tolist(), a), "not list and Tensor"),
        (lambda a, p: tunekit.explain(p, device="cuda"), "DeviceInfo as device, not str"),
        (lambda a, p: tunekit.warmup(None), "a list of problems or pairs, not None"),
        (lambda a, p: tunekit.warmup(p), "not Problem"),
        (lambda a, p: tunekit.warmup("8,8,8"), "not str"),
        (lambda a, p: tunekit.warmup([8]), "pairs of tensors, not int"),
        (lambda a, p: tunekit.warmup((a, a)), "pairs of tensors, not Tensor"),
        (lambda a, p: tunekit.warmup([(a, 2)]), "not tuple of Tensor, int"),
        (lambda a, p: tunekit.warmup([()]), "not tuple of nothing"),
    ],
)
def test_wrong_arguments_are_one_line(call, why):
    with pytest.raises(TypeError, match=why) as told:
        call(torch.ones(3, 3), Problem("matmul", 8, 8, 8, "float16"))
    assert "\n" not in str(told.value)


def test_wider_and_scaled_problems_are_prepared_as_they_are_called(pretend_gpu, monkeypatch):
    monkeypatch.setattr(widening, "on_gpu", lambda a: True)
    monkeypatch.setattr(scaled, "on_gpu", lambda a: True)
    wide = Problem("matmul", 48, 64, 64, "float16", "float32")
    rows = Problem("matmul", 32, 48, 64, "float8_e4m3fn", "bfloat16", scaling="row")
    with tunekit.policy(backend="triton", on_miss="fallback"):
        found = tunekit.warmup([wide, rows], device="cpu")
        assert [one.key.problem for one in found] == [wide, rows]
        monkeypatch.setattr(MATMUL, "bind", lambda *a: pytest.fail("prepared again"))
        a, b = operands()
        assert tunekit.matmul(a, b, out_dtype=torch.float32).dtype is torch.float32
        a, b = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(48, 64)
        scales = torch.ones(32, 1), torch.ones(1, 48)
        tunekit.scaled_mm(a, b.to(a.dtype).t(), *scales, out_dtype=torch.bfloat16)
    assert {key.problem for key in dispatch.miss_counts()} == {wide, rows}
    why = [
        (dataclasses.replace(wide, batch=2), "batches"),
        (dataclasses.replace(rows, scaling="none"), "scales"),
    ]
    for problem, text in why:
        (found,) = tunekit.warmup([problem], device="cpu")
        assert (found.runs, found.key) == (Choice.VENDOR, None)
        assert text in found.why
    with tunekit.policy(backend="vendor"):
        assert "vendor" in tunekit.warmup([wide], device="cpu")[0].why


def test_a_wider_problem_on_the_cpu_is_torchs():
    (found,) = tunekit.warmup([Problem("matmul", 8, 8, 8, "int8", "int32")], device="cpu")
    assert "CPU" in found.why
