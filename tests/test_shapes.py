"""Shapes files: what they may say, and errors that name the file, the line and the way out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit import shapes
from tunekit.errors import ShapesError
from tunekit.key import LAYOUTS
from tunekit.shapes import Shape, load_shapes, parse_shape


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "shapes.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def problems(path):
    return [(s.problem.m, s.problem.n, s.problem.k) for s in load_shapes(path)]


def test_lists_are_multiplied_out_in_order(write):
    path = write("shapes:\n- {m: [1, 16], n: 8, k: [32, 64], dtype: [fp16, bf16], name: up}\n")
    loaded = load_shapes(path)
    got = [(s.problem.m, s.problem.k, s.problem.dtype) for s in loaded]
    assert got == list(itertools.product([1, 16], [32, 64], ["float16", "bfloat16"]))
    assert {s.name for s in loaded} == {"up"}


def test_an_entry_is_bfloat16_nt_once_unless_it_says_otherwise(write):
    (shape,) = load_shapes(write("shapes: [[64, 128, 256]]"))
    assert shape == Shape(parse_shape("64,128,256,bfloat16,nt").problem, count=1, name="", line=1)
    assert shape.problem.out_dtype == "bfloat16"
    assert shape.problem.aligned


def test_products_of_int8_give_int32_unless_another_is_asked_for(write):
    path = write(
        "shapes:\n- [64, 64, 64]\n- {m: 64, n: 64, k: 64, out_dtype: int8}\ndefaults: {dtype: int8}"
    )
    assert [shape.problem.out_dtype for shape in load_shapes(path)] == ["int32", "int8"]
    assert parse_shape("64,64,64,int8") == parse_shape("64x64x64 int8 nt -> int32")
    assert parse_shape("64,64,64,torch.int8").problem.out_dtype == "int32"


def test_defaults_fill_in_and_an_entry_overrides_them(write):
    path = write(
        "defaults: {dtype: float16, layout: nn, k: 64, count: 7}\n"
        "shapes:\n"
        "- {m: 1, n: 2}\n"
        "- {m: 1, n: 2, k: 3, dtype: float32, layout: tt, count: 2}\n"
    )
    first, second = load_shapes(path)
    assert (first.problem.dtype, first.problem.layout, first.problem.k) == ("float16", "nn", 64)
    assert (second.problem.dtype, second.problem.layout, second.problem.k) == ("float32", "tt", 3)
    assert (first.count, second.count) == (7, 2)
    assert (first.line, second.line) == (3, 4)


def test_every_optional_field_reaches_the_problem(write):
    path = write(
        "shapes:\n- {m: 1, n: 2, k: 3, dtype: float32, out_dtype: float16, precision: tf32,"
        " layout: tn, aligned: true, scaling: none, batch: 4, count: 5, name: x}\n"
    )
    (shape,) = load_shapes(path)
    assert (shape.problem.out_dtype, shape.problem.precision) == ("float16", "tf32")
    assert (shape.problem.aligned, shape.problem.batch, shape.count) == (True, 4, 5)


def test_alignment_is_that_of_dense_operands_unless_given(write):
    path = write("shapes: [[8, 8, 7], [8, 8, 8], {m: 8, n: 8, k: 8, aligned: false}]")
    assert [s.problem.aligned for s in load_shapes(path)] == [False, True, False]


def test_a_default_precision_is_for_float32_entries_alone(write):
    path = write(
        "defaults: {precision: tf32}\nshapes: [{m: 1, n: 1, k: 1, dtype: [float32, float16]}]"
    )
    assert [s.problem.precision for s in load_shapes(path)] == ["tf32", "ieee"]


def test_the_same_problem_may_be_listed_twice(write):
    first, second = load_shapes(write("shapes:\n- [8, 8, 8]\n- {m: 8, n: 8, k: 8, count: 3}\n"))
    assert first.problem == second.problem
    assert (first.count, second.count) == (1, 3)


def test_aliases_and_merge_keys_are_plain_data(write):
    path = write(
        "defaults: &d {dtype: float16}\n"
        "shapes:\n"
        "- &a {m: &sizes [1, 2], n: 8, k: 8}\n"
        "- {<<: *a, n: 16}\n"
        "- {<<: [*a, *d], m: *sizes, k: 32}\n"
    )
    assert problems(path) == [(1, 8, 8), (2, 8, 8), (1, 16, 8), (2, 16, 8), (1, 8, 32), (2, 8, 32)]


def test_utf8_with_a_byte_order_mark_and_underscores_in_numbers(write):
    assert problems(write("\ufeffshapes: [[1_024, 8, 8]]")) == [(1024, 8, 8)]


MALFORMED = {
    "empty": ("", "is empty"),
    "only a comment": ("# nothing\n", "is empty"),
    "null": ("~", ":1: the file must be a mapping"),
    "list at the top": ("- [1, 2, 3]\n", ":1: the file must be a mapping"),
    "no shapes": ("defaults: {m: 1}\n", ":1: the file has no `shapes:`"),
    "unknown at the top": ("shapes: [[1, 1, 1]]\nshape: 1\n", ":2: unknown field 'shape'"),
    "empty list": ("\nshapes: []\n", ":2: `shapes` is an empty list"),
    "null list": ("shapes:\n", ":1: `shapes` must be a list"),
    "not a list": ("shapes: {m: 1, n: 1, k: 1}\n", ":1: `shapes` must be a list"),
    "entry is a number": ("shapes: [64, 64, 64]\n", ":1: an entry is"),
    "short entry of two": ("shapes:\n- [1, 2]\n", ":2: a short entry is [M, N, K], not 2"),
    "unknown field": ("shapes:\n- m: 1\n  n: 1\n  k: 1\n  kk: 1\n", ":5: unknown field 'kk'"),
    "unknown default": ("defaults: {dtypes: x}\nshapes: [[1, 1, 1]]\n", ":1: unknown field"),
    "field that is a list": ("shapes:\n- {[m]: 1}\n", ":2: a field that is not a name"),
    "missing k": ("shapes:\n- {m: 1, n: 1}\n", ":2: the entry has no 'k'"),
    "twice": ("shapes:\n- {m: 1,\n   n: 1, k: 1, m: 2}\n", ":3: field 'm' is given twice"),
    "shapes twice": ("shapes: [[1, 1, 1]]\nshapes: [[1, 1, 1]]\n", ":2: field 'shapes'"),
    "zero": ("shapes:\n- [1, 0, 1]\n", ":2: n must be a plain whole number"),
    "negative": ("shapes:\n- {m: -4, n: 1, k: 1}\n", ":2: m must be"),
    "2^31": ("shapes:\n- [1, 1, 2147483648]\n", ":2: k must be"),
    "2^40": ("shapes:\n- [1, 1, 1099511627776]\n", ":2: k must be"),
    "1000 digits": (f"shapes:\n- [1, 1, {'9' * 1000}]\n", ":2: k must be"),
    "octal": ("shapes:\n- [1, 1, 010]\n", ":2: k must be"),
    "base 60": ("shapes:\n- [1, 1, 1:30]\n", ":2: k must be"),
    "boolean": ("shapes:\n- [true, 1, 1]\n", ":2: m must be"),
    "float": ("shapes:\n- [1.0, 1, 1]\n", ":2: m must be"),
    "infinite": ("shapes:\n- [.inf, 1, 1]\n", ":2: m must be"),
    "string": ('shapes:\n- ["64", 1, 1]\n', ":2: m must be"),
    "null size": ("shapes:\n- {m: , n: 1, k: 1}\n", ":2: m must be"),
    "size is a mapping": ("shapes:\n- {m: {a: 1}, n: 1, k: 1}\n", ":2: m must be a single value"),
    "list in a list": ("shapes:\n- {m: [[1]], n: 1, k: 1}\n", ":2: m must be a single value"),
    "empty sizes": ("shapes:\n- {m: [], n: 1, k: 1}\n", ":2: m is an empty list"),
    "second of a list": ("shapes:\n- m: [1,\n     0]\n  n: 1\n  k: 1\n", ":3: m must be"),
    "count 0": ("shapes:\n- {m: 1, n: 1, k: 1, count: 0}\n", ":2: count must be"),
    "count list": ("shapes:\n- {m: 1, n: 1, k: 1, count: [1]}\n", ":2: count must be a single"),
    "dtype": ("defaults: {dtype: bfloat61}\nshapes: [[1, 1, 1]]\n", ":1: unknown dtype 'bfloat61'"),
    "out_dtype": ("shapes:\n- {m: 1, n: 1, k: 1, out_dtype: f8}\n", ":2: unknown dtype 'f8'"),
    "layout": ("shapes:\n- {m: 1, n: 1, k: 1, layout: tnt}\n", ":2: unknown layout 'tnt'"),
    "precision": ("shapes:\n- {m: 1, n: 1, k: 1, precision: high}\n", ":2: unknown precision"),
    "scaling": ("shapes:\n- {m: 1, n: 1, k: 1, scaling: block}\n", ":2: unknown scaling"),
    "aligned": ("shapes:\n- {m: 1, n: 1, k: 1, aligned: 1}\n", ":2: aligned must be true or false"),
    "batch": ("shapes:\n- {m: 1, n: 1, k: 1, batch: 0}\n", ":2: batch must be"),
    "name": ('shapes:\n- {m: 1, n: 1, k: 1, name: "a\\nb"}\n', ":2: name must be one line"),
    "tf32 of float16": (
        "shapes:\n- {m: 1, n: 1, k: 1, dtype: fp16, precision: tf32}\n",
        ":2: precision 'tf32' is for float32",
    ),
    "syntax": ("shapes:\n- {m: 1, n: [}\n", ":2: not valid YAML"),
    "tab": ("shapes:\n\t- [1, 1, 1]\n", ":2: not valid YAML"),
    "no such anchor": ("shapes:\n- *nowhere\n", ":2: not valid YAML"),
    "two documents": ("shapes: [[1, 1, 1]]\n---\nshapes: []\n", ":2: not valid YAML"),
    "control character": ("shapes:\n- [1, 1, 1] # \x07\n", ":2: not valid YAML"),
    "not UTF-8": (b"shapes:\n- [1, 1, 1] # \xff\n", ":2: not UTF-8 text"),
    "too deep": ("shapes: " + "[" * 5000, "nested too deeply"),
    "merged into itself": ("shapes:\n- &a {<<: *a, m: 1}\n", ":2: a mapping is merged into itself"),
    "merge of a list": ("shapes:\n- {<<: [1], m: 1}\n", ":2: `<<` merges mappings only"),
    "object": ("shapes:\n- !!python/object/new:os.system [echo]\n", ":2: "),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_one_line_that_names_the_place(write, case):
    text, expected = MALFORMED[case]
    path = write(text)
    with pytest.raises(ShapesError) as caught:
        load_shapes(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert expected in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "shapes.yaml").write_text("shapes: [[1, 1, 1]]")
    with pytest.raises(ShapesError, match=r"did you mean .*/shapes\.yaml\?"):
        load_shapes(tmp_path / "shape.yml")
    with pytest.raises(ShapesError, match="no such shapes file"):
        load_shapes(tmp_path / "absent.yaml")
    with pytest.raises(ShapesError, match="is a folder"):
        load_shapes(tmp_path)
    with pytest.raises(ShapesError, match="cannot read"):
        load_shapes(tmp_path / "a\0b")


def test_a_product_is_refused_before_it_is_expanded(write):
    many = ", ".join(map(str, range(1, 1001)))
    path = write(f"shapes:\n- {{m: &s [{many}], n: *s, k: *s}}\n")
    with pytest.raises(ShapesError, match=r":2: more than 100000 problems"):
        load_shapes(path)


def test_aliases_that_multiply_are_refused(write):
    lines = ["defaults: {m: 1, n: 1, k: 1}", "shapes:", "- &a0 {m: 1}"]
    lines += [f"- &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}]}}" for i in range(60)]
    assert len(load_shapes(write("\n".join(lines)))) == 61  # 9^60 merges, each resolved once
    nested = "x: &x [1, 1]\n" + "shapes: [[*x, *x]]\n"
    with pytest.raises(ShapesError, match="unknown field 'x'"):
        load_shapes(write(nested))


def test_a_file_too_large_is_refused(write, monkeypatch):
    monkeypatch.setattr(shapes, "MAX_FILE_BYTES", 8)
    with pytest.raises(ShapesError, match="larger than"):
        load_shapes(write("shapes: [[1, 1, 1]]"))


size = st.integers(1, 2**31 - 1)


@given(
    size, size, size, st.sampled_from(["float16", "bfloat16", "float32"]), st.sampled_from(LAYOUTS)
)
def test_the_short_form_and_the_file_say_the_same(tmp_path_factory, m, n, k, dtype, layout):
    path = tmp_path_factory.mktemp("shapes") / "s.yaml"
    path.write_text(f"shapes:\n- {{m: {m}, n: {n}, k: {k}, dtype: {dtype}, layout: {layout}}}\n")
    assert load_shapes(path)[0].problem == parse_shape(f"{m},{n}, {k},{dtype},{layout}").problem


@pytest.mark.parametrize(
    "text",
    ["512x4096x64,fp16", "512x4096x64 float16 nt", "512, 4096 ,64, float16", "512 4096x64 fp16"],
)
def test_a_problem_is_read_as_people_write_it(text):
    assert parse_shape(text) == parse_shape("512,4096,64,float16,nt")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is not of the form"),
        ("1,2", "is not of the form"),
        ("1,2,3,fp16,nn,x", "is not of the form"),
        ("1,2,x", "k must be"),
        ("0,2,3", "m must be"),
        ("1,-2,3", "n must be"),
        ("1,2,1099511627776", "k must be"),
        ("1,2,3,", "unknown dtype ''"),
        ("1,2,3,float61", "unknown dtype 'float61'"),
        ("1,2,3,fp16,xx", "unknown layout 'xx'"),
        ("\u0661,2,3", "m must be"),
    ],
)
def test_a_malformed_short_form_is_one_line(text, expected):
    with pytest.raises(ShapesError) as caught:
        parse_shape(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", ["- [1, 1, 1]\n", "- {m: 1, n: 1, k: 1}\n"])
def test_too_many_entries_are_refused_before_they_are_built(write, monkeypatch, entry):
    monkeypatch.setattr(shapes, "MAX_SHAPES", 100)
    assert len(load_shapes(write("shapes:\n" + entry * 100))) == 100
    monkeypatch.setattr(shapes.yaml, "compose", None)  # not even asked
    with pytest.raises(ShapesError, match=r":102: more than \d+ problems in all"):
        load_shapes(write("shapes:\n" + entry * 101))
