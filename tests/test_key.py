"""Problems and keys: what they accept, what they compute, and what keeps two of them apart."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.errors import ProblemError
from tunekit.key import (
    ITEMSIZE,
    LAYOUTS,
    MAX_SIZE,
    SCALINGS,
    Problem,
    TuningKey,
    canonical_dtype,
)

sizes = st.integers(1, MAX_SIZE - 1)


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(sorted(ITEMSIZE)))
    precisions = ("ieee", "tf32") if dtype == "float32" else ("ieee",)
    return Problem(
        "matmul",
        draw(sizes),
        draw(sizes),
        draw(sizes),
        dtype,
        out_dtype=draw(st.sampled_from(["", *sorted(ITEMSIZE)])),
        precision=draw(st.sampled_from(precisions)),
        layout=draw(st.sampled_from(LAYOUTS)),
        aligned=draw(st.booleans()),
        scaling=draw(st.sampled_from(SCALINGS)),
        batch=draw(sizes),
    )


def product(m, n, k, dtype="bfloat16", **rest):
    return Problem("matmul", m, n, k, dtype, **rest)


@given(problems())
def test_a_problem_survives_plain_data(problem):
    assert Problem(**problem.to_dict()) == problem


@given(problems())
def test_a_problem_is_read_back_as_it_is_written(problem):
    assert Problem.parse(str(problem)) == problem
    assert Problem.parse(f"  {problem} ".replace(" ", "  ")) == problem


@pytest.mark.parametrize("text", ["", "512 512 512", "1x2x3", "1x2x3 bfloat16", "1x2x3 a b c"])
def test_what_is_no_written_problem_is_none(text):
    assert Problem.parse(text) is None


def test_a_written_problem_with_a_wrong_field_is_an_error():
    with pytest.raises(ProblemError, match="unknown dtype 'bfloat17'"):
        Problem.parse("1x2x3 bfloat17 nt")


@given(problems())
def test_a_key_survives_plain_data_and_holds_its_problem(problem):
    key = TuningKey.of(problem, "nvidia-h200-sm90-132")

    assert TuningKey(**key.to_dict()) == key
    assert key.problem == problem
    assert str(problem) in str(key)
    assert str(key).endswith("nvidia-h200-sm90-132")


def test_a_key_has_every_field_of_a_problem_with_the_same_default():
    def of(kind):
        return {f.name: f.default for f in fields(kind)}

    assert of(TuningKey).items() - of(Problem).items() == {("gpu", fields(TuningKey)[5].default)}


@pytest.mark.parametrize(
    "change",
    [
        {"m": 65},
        {"n": 65},
        {"k": 65},
        {"dtype": "float16", "out_dtype": "float32"},
        {"out_dtype": "float16"},
        {"precision": "tf32"},
        {"layout": "nn"},
        {"aligned": False},
        {"scaling": "row"},
        {"batch": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_no_two_settings_that_change_the_kernel_share_a_key(change):
    base = product(64, 64, 64, "float32")
    other = replace(base, **change)
    one, two = (TuningKey.of(p, "some-gpu") for p in (base, other))

    assert one != two
    assert len({one, two}) == 2
    assert str(one) != str(two)


def test_keys_of_two_gpus_differ():
    problem = product(64, 64, 64)
    assert TuningKey.of(problem, "one-gpu") != TuningKey.of(problem, "other-gpu")


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("size", [0, -1, MAX_SIZE, 1 << 40, True, 2.0, "64", None])
def test_a_size_that_is_no_size_is_refused_by_name(name, size):
    with pytest.raises(ProblemError, match=f"^{name} must be a whole number"):
        Problem(**{**product(1, 1, 1).to_dict(), name: size})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "float64"),
        ("dtype", "bf17"),
        ("dtype", ["float16"]),
        ("out_dtype", "complex64"),
        ("layout", "nnt"),
        ("layout", ""),
        ("layout", ["nn"]),
        ("precision", "highest"),
        ("scaling", "block"),
        ("aligned", 1),
        ("family", ""),
        ("family", None),
    ],
)
def test_a_field_that_is_none_of_its_values_is_refused_by_name(name, value):
    with pytest.raises(ProblemError, match=name.removeprefix("out_")):
        Problem(**{**product(1, 1, 1).to_dict(), name: value})


def test_a_precision_mode_is_for_float32_alone():
    assert product(1, 1, 1, "float32", precision="tf32").precision == "tf32"
    with pytest.raises(ProblemError, match="is for float32, not float16"):
        product(1, 1, 1, "float16", precision="tf32")


@pytest.mark.parametrize("gpu", ["", None, 90, "x" * 201])
def test_a_gpu_that_is_no_slug_is_refused(gpu):
    with pytest.raises(ProblemError, match="gpu"):
        TuningKey.of(product(1, 1, 1), gpu)


def test_a_key_is_validated_like_its_problem():
    with pytest.raises(ProblemError, match="layout"):
        TuningKey("matmul", 1, 1, 1, "bf16", "some-gpu", layout="xy")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("fp32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn"),
    ],
)
def test_short_names_and_torchs_own_mean_the_same_dtype(given_name, name):
    assert canonical_dtype(given_name) == name
    assert product(1, 1, 1, given_name) == product(1, 1, 1, name)


def test_the_output_dtype_defaults_to_the_inputs():
    assert product(1, 1, 1, "fp16").out_dtype == "float16"
    key = TuningKey("matmul", 1, 1, 1, "fp16", "some-gpu")
    assert (key.dtype, key.out_dtype) == ("float16", "float16")


@pytest.mark.parametrize(
    ("layout", "leading"),
    [("nn", (3, 5)), ("nt", (3, 3)), ("tn", (7, 5)), ("tt", (7, 3))],
)
def test_leading_dimensions_are_those_of_dense_storage(layout, leading):
    # A is 7x3 and B is 3x5; `n` stores rows, `t` stores columns
    assert product(7, 5, 3, layout=layout).leading_dimensions() == leading


def test_leading_dimensions_agree_with_torch():
    torch = pytest.importorskip("torch")
    for layout in LAYOUTS:
        a = torch.empty(7, 3) if layout[0] == "n" else torch.empty(3, 7).t()
        b = torch.empty(3, 5) if layout[1] == "n" else torch.empty(5, 3).t()
        expected = tuple(max(tensor.stride()) for tensor in (a, b))
        assert product(7, 5, 3, layout=layout).leading_dimensions() == expected


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "layout", "aligned"),
    [
        (2, 2, 8, "bfloat16", "nt", True),
        (2, 2, 4, "bfloat16", "nt", False),
        (1, 1, 4, "bfloat16", "nt", True),  # a single row or column has no next one
        (2, 1, 4, "bfloat16", "nt", False),
        (1, 2, 4, "bfloat16", "nt", False),
        (4, 4, 1, "bfloat16", "tn", True),
        (1023, 1023, 1023, "bfloat16", "nt", False),
        (1000, 1000, 1000, "bfloat16", "nn", True),
        (1000, 1000, 1000, "int8", "nn", False),
        (1008, 1008, 1008, "int8", "nn", True),
        (1000, 1000, 1000, "float32", "tt", True),
        (1002, 1002, 1002, "float32", "tt", False),
        (64, 65, 64, "float16", "nt", True),
        (64, 65, 64, "float16", "nn", False),
        (65, 64, 64, "float16", "nn", True),
        (65, 64, 64, "float16", "tn", False),
    ],
)
def test_natural_alignment_is_whole_16_bytes_of_both_leading_dimensions(
    m, n, k, dtype, layout, aligned
):
    assert product(m, n, k, dtype, layout=layout).naturally_aligned() is aligned


def test_flops_and_bytes_counted_by_hand():
    problem = product(2, 3, 4, "float16", out_dtype="float32", batch=5)

    assert problem.flops == 5 * 2 * (2 * 3 * 4)
    # per product: 8 and 12 elements read at 2 bytes, 6 written at 4
    assert problem.min_bytes == 5 * ((8 + 12) * 2 + 6 * 4)


def test_counts_of_the_largest_problem_are_exact():
    size = MAX_SIZE - 1
    assert product(size, size, size).flops == 2 * size**3


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (product(64, 128, 256), "64x128x256 bfloat16 nt"),
        (product(64, 128, 256, batch=3, layout="nn"), "3x64x128x256 bfloat16 nn"),
        (product(1, 2, 3, "int8", out_dtype="int32"), "1x2x3 int8 nt -> int32"),
        (product(1, 2, 3, "fp32", precision="tf32"), "1x2x3 float32 nt tf32"),
        (product(1, 2, 3, aligned=False), "1x2x3 bfloat16 nt unaligned"),
        (
            product(1, 2, 3, "float8_e5m2", out_dtype="bf16", scaling="tensor"),
            "1x2x3 float8_e5m2 nt -> bfloat16 scaled per tensor",
        ),
    ],
)
def test_the_text_of_a_problem(problem, text):
    assert str(problem) == text


def test_numpys_integers_are_taken_as_pythons():
    np = pytest.importorskip("numpy")
    problem = Problem("matmul", np.int64(64), np.int32(48), np.uint8(32), "float16")
    assert problem == Problem("matmul", 64, 48, 32, "float16")
    assert {type(size) for size in (problem.m, problem.n, problem.k)} == {int}
    with pytest.raises(ProblemError, match="m must be a whole number"):
        Problem("matmul", np.float64(64), 48, 32, "float16")
