"""Shapes files that tunekit writes: what is read back is what was counted, also when added to."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunekit.errors import ProblemError, ShapesError, TunekitError
from tunekit.key import ITEMSIZE, LAYOUTS, MAX_SIZE, Problem
from tunekit.recorder.counting import Record
from tunekit.recorder.shapes_file import add_to_shapes, check_shapes_file, shapes_text
from tunekit.shapes import Shape, load_shapes, read_shapes


def problem(m=16, **fields):
    return Problem("matmul", m, 64, 128, **{"dtype": "bfloat16", **fields})


@st.composite
def problems(draw):
    dtype = draw(st.sampled_from(["float16", "bfloat16", "float32"]))
    size = st.integers(1, 5000)
    return Problem(
        "matmul", draw(size), draw(size), draw(size), dtype,
        precision=draw(st.sampled_from(["ieee", "tf32"])) if dtype == "float32" else "ieee",
        layout=draw(st.sampled_from(LAYOUTS)), aligned=draw(st.booleans()),
    )  # fmt: skip


names = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@given(st.lists(st.builds(Shape, problems(), st.integers(1, MAX_SIZE - 1), names), max_size=6))
def test_what_is_written_is_read_back(shapes):
    text = shapes_text(shapes)
    found = read_shapes(text, path="f") if shapes else []
    expected = {}
    for one in shapes:
        expected.setdefault(one.problem, []).append((one.count, one.name))
    assert {one.problem for one in found} == set(expected)
    assert all((one.count, one.name) in expected[one.problem] for one in found)
    flops = [one.problem.flops * one.count for one in found]
    assert flops == sorted(flops, reverse=True)


def test_the_file_says_what_was_run_and_what_share_each_problem_has():
    shapes = [Shape(problem(), 3, "layers.*.up"), Shape(problem(48), 1)]
    assert shapes_text(shapes, source="python a.py\n--x").splitlines() == [
        "# Written by `tunekit record`; to tune them: tunekit tune --shapes FILE",
        "# The matrix products of: python a.py --x",
        "# Most work first; the percentages are of all floating-point operations.",
        "shapes:",
        "  - {m: 16, n: 64, k: 128, dtype: bfloat16, layout: nt, count: 3, name: "
        '"layers.*.up"}  # 50.0%',
        "  - {m: 48, n: 64, k: 128, dtype: bfloat16, layout: nt}  # 50.0%",
    ]


BATCHED = problem(batch=4)
FP8 = Problem(
    "matmul", 16, 64, 128, "float8_e4m3fn", out_dtype="bfloat16", scaling="row", aligned=False
)


def test_what_no_kernel_takes_is_a_comment_with_the_reason_and_is_kept(tmp_path):
    from tunekit.recorder import shapes_file

    refused = [one for one in (BATCHED, FP8) if shapes_file.why_not(one) is not None]
    if not refused:
        pytest.skip("the kernels take batched and scaled products")
    path = tmp_path / "shapes.yaml"
    shapes = [Shape(problem(), 2), *(Shape(one, 5, "attention") for one in refused)]
    add_to_shapes(path, shapes)
    assert [one.problem for one in load_shapes(path)] == [problem()]
    assert "What no kernel of tunekit takes yet" in path.read_text()
    once = path.read_text()
    add_to_shapes(path, shapes)
    assert path.read_text() == once.replace("count: 5", "count: 10").replace("count: 2", "count: 4")


def test_a_file_of_nothing_but_those_is_added_to(tmp_path, monkeypatch):
    from tunekit.recorder import shapes_file

    path = tmp_path / "shapes.yaml"
    monkeypatch.setattr(shapes_file, "why_not", lambda one: "not today")
    add_to_shapes(path, [Shape(BATCHED, 5)])
    with pytest.raises(ShapesError, match="empty list"):
        load_shapes(path)
    monkeypatch.setattr(shapes_file, "why_not", lambda one: None)
    add_to_shapes(path, [Shape(BATCHED, 1), Shape(problem(), 1)])
    assert {(s.problem, s.count) for s in load_shapes(path)} == {(BATCHED, 6), (problem(), 1)}
    assert "not today" not in path.read_text()


def test_counts_add_up_and_the_first_name_stays(tmp_path):
    path = tmp_path / "shapes.yaml"
    add_to_shapes(path, [Shape(problem(), 3, "a"), Shape(problem(48), 1)])
    add_to_shapes(path, [Shape(problem(), 4, "b"), Shape(problem(48), 1, "c"), Shape(problem(7))])
    found = {one.problem.m: (one.count, one.name) for one in load_shapes(path)}
    assert found == {16: (7, "a"), 48: (2, "c"), 7: (1, "")}
    assert [file.name for file in tmp_path.iterdir()] == ["shapes.yaml"]


def test_a_file_made_by_hand_is_kept_beside_what_is_written(tmp_path):
    path = tmp_path / "shapes.yaml"
    text = (
        "# mine\ndefaults: {dtype: bfloat16}\nshapes:\n- {m: [16, 48], n: 64, k: 128, count: 2}\n"
    )
    path.write_text(text)
    (tmp_path / "shapes.yaml.orig").write_text("another")
    add_to_shapes(path, [Shape(problem(), 4)])
    assert {one.problem.m: one.count for one in load_shapes(path)} == {16: 6, 48: 2}
    assert (tmp_path / "shapes.yaml.orig").read_text() == "another"
    assert (tmp_path / "shapes.yaml.orig2").read_text() == text


def test_counts_stay_within_what_a_file_may_hold(tmp_path):
    path = tmp_path / "shapes.yaml"
    for _ in range(2):
        add_to_shapes(path, [Shape(problem(), MAX_SIZE - 1)])
    assert [one.count for one in load_shapes(path)] == [MAX_SIZE - 1]


def test_many_that_add_at_once_lose_nothing(tmp_path):
    path, barrier = tmp_path / "shapes.yaml", threading.Barrier(8)

    def add(number):
        record = Record()
        record.add(problem(), "shared", count=1)
        record.add(problem(number + 1), count=number + 1)
        barrier.wait()
        for _ in range(3):
            record.save(path)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {one.problem.m: one.count for one in load_shapes(path)}
    assert found == {16: 24, **{m: 3 * m for m in range(1, 9)}}


@pytest.mark.parametrize("text", ["", "a: 1\n", "shapes:\n- {m: 1}\n", "[", "\x00"])
def test_what_is_no_shapes_file_is_refused_and_left(tmp_path, text):
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    for act in (lambda: check_shapes_file(path), lambda: add_to_shapes(path, [Shape(problem())])):
        with pytest.raises(ShapesError, match=r"shapes\.yaml"):
            act()
    assert path.read_text() == text


def test_what_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(TunekitError, match="cannot write"):
        add_to_shapes(tmp_path / "missing" / "shapes.yaml", [Shape(problem())])
    with pytest.raises(ShapesError, match="is a folder"):
        check_shapes_file(tmp_path)


def test_every_dtype_that_a_problem_may_have_is_written(tmp_path):
    shapes = []
    for dtype in ITEMSIZE:
        try:
            shapes.append(Shape(problem(dtype=dtype, out_dtype="float32")))
        except ProblemError:
            continue
    add_to_shapes(tmp_path / "shapes.yaml", shapes)
    text = (tmp_path / "shapes.yaml").read_text()
    assert all(dtype in text for dtype in ITEMSIZE)
