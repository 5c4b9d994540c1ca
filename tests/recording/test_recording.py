"""Recordings: what goes into a file comes out of it, and a damaged one is one clear line."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunekit.errors import RecordingError
from tunekit.recording import Recording
from tunekit.replay import shipped_recordings
from tunekit.shapes import load_shapes
from tunekit.trial import Fingerprint, Measurement, Origin, Provenance, Status, Trial


@pytest.fixture
def file(tmp_path, recording):
    path = tmp_path / "made-up.json.gz"
    recording.save(path)
    return path


def rewrite(file, change):
    plain = json.loads(gzip.decompress(file.read_bytes()))
    change(plain)
    file.write_bytes(gzip.compress(json.dumps(plain).encode()))


def test_a_round_trip_loses_nothing(recording, file):
    loaded = Recording.load(file)
    assert loaded == recording
    assert loaded.to_bytes() == file.read_bytes()


def test_equal_recordings_are_equal_files(recording, file, tmp_path):
    turned = Recording(recording.device, recording.environment)
    turned.sources = dict(reversed(recording.sources.items()))
    turned.problems = dict(reversed(recording.problems.items()))
    turned.save(tmp_path / "another-name.json.gz")
    assert (tmp_path / "another-name.json.gz").read_bytes() == file.read_bytes()


def test_times_are_rounded_and_the_finals_marked(recording, problems, configs):
    found = recording.problems[problems[0]]
    assert found.screening[configs[0]].measurement.median_us == 12.346
    assert found.screening[configs[0]].measurement.error_ratio == 0.01235
    assert not found.screening[configs[0]].measurement.final
    assert found.finals[configs[0]].measurement.final
    assert found.vendor.final


def test_a_config_known_from_finals_alone_counts_as_screened(recording, problems, configs):
    known = recording.problems[problems[0]].finals
    recording.put(problems[0], [], finals=known.values(), space_size=3)
    found = recording.problems[problems[0]]
    assert set(found.screening) == set(known)
    assert not found.screening[configs[0]].measurement.final


@pytest.mark.parametrize("median", [math.nan, math.inf, 0.0])
def test_a_time_that_is_no_positive_number_is_left_out(recording, problems, configs, median):
    bad = Measurement(median, 1, 1, 1, 1, 1, 3, "fake-1")
    trial = Trial(configs[0], Status.OK, bad)
    recording.put(problems[0], [trial], vendor=bad, space_size=3)
    assert not recording.problems[problems[0]].screening
    assert recording.problems[problems[0]].vendor is None


def test_what_was_not_measured_here_is_refused(recording, configs):
    good = recording.provenance(configs[0])
    with pytest.raises(RecordingError, match="only what is measured"):
        recording.admit(configs[0], good)
    measured = replace(good, origin=Origin.MEASURED)
    recording.admit(configs[0], measured)
    other = replace(measured, fingerprint=Fingerprint(good.fingerprint.source, "compiler-2"))
    with pytest.raises(RecordingError, match="compiler-1, not compiler-2"):
        recording.admit(configs[0], other)
    changed = replace(measured, fingerprint=Fingerprint("new", good.fingerprint.compiler))
    with pytest.raises(RecordingError, match="another version of kernel pointer"):
        recording.admit(configs[0], changed)


def test_provenance_says_where_it_was_measured(recording, configs):
    found = recording.provenance(configs[2])
    assert isinstance(found, Provenance)
    assert found.origin is Origin.REPLAYED
    assert found.fingerprint == Fingerprint("source-of-tma", "compiler-1")
    assert (found.triton, found.created_at) == ("3.6", "2020-01-01T00:00:00Z")


def test_a_file_cut_short_anywhere_is_an_error(file):
    whole = file.read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(RecordingError, match=r"made-up\.json\.gz"):
            Recording.load(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_changes_nothing(file, recording, place, value):
    whole = bytearray(recording.to_bytes())
    whole[place % len(whole)] ^= value
    file.write_bytes(whole)
    with contextlib.suppress(RecordingError):
        assert Recording.load(file) == recording


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.pop("device"),
        lambda plain: plain["device"].update(shared_bytes="many"),
        lambda plain: plain["environment"].pop("triton"),
        lambda plain: plain["configs"]["block_m"].pop(),
        lambda plain: plain["configs"]["block_m"].__setitem__(0, -3),
        lambda plain: plain["problems"][0]["problem"].update(m=0),
        lambda plain: plain["problems"][0].pop("vendor"),
        lambda plain: plain["problems"][0].update(space_size=1.5),
        lambda plain: plain["problems"][0]["screening"]["config"].__setitem__(0, 99),
        lambda plain: plain["problems"][0]["screening"]["config"].__setitem__(0, -1),
        lambda plain: plain["problems"][0]["screening"]["status"].__setitem__(0, "fine"),
        lambda plain: plain["problems"][0]["screening"]["median_us"].__setitem__(0, "1"),
        lambda plain: plain["problems"][0]["screening"]["median_us"].__setitem__(0, float("nan")),
        lambda plain: plain["problems"][0]["screening"]["median_us"].pop(),
        lambda plain: plain["problems"][0]["screening"].pop("low_us"),
        lambda plain: plain.update(problems=7),
        lambda plain: plain.update(sources=[]),
    ],
)
def test_a_wrong_value_is_an_error(file, change):
    rewrite(file, change)
    with pytest.raises(RecordingError, match="is damaged"):
        Recording.load(file)


def test_a_newer_schema_and_another_format_are_told_apart(file):
    rewrite(file, lambda plain: plain.update(schema=2))
    with pytest.raises(RecordingError, match="has schema 2; this tunekit reads schema 1"):
        Recording.load(file)
    rewrite(file, lambda plain: plain.update(format="else"))
    with pytest.raises(RecordingError, match="is not a recording"):
        Recording.load(file)
    file.write_bytes(gzip.compress(b"[1, 2]"))
    with pytest.raises(RecordingError, match="is not a recording"):
        Recording.load(file)
    file.write_bytes(b"shapes: []\n")
    with pytest.raises(RecordingError, match="damaged or not a recording: name a file"):
        Recording.load(file)


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path):
    with pytest.raises(RecordingError, match=r"cannot read .*none\.json\.gz: No such file"):
        Recording.load(tmp_path / "none.json.gz")
    with pytest.raises(RecordingError, match="Is a directory"):
        Recording.load(tmp_path)


def test_a_failed_save_leaves_the_old_file_and_no_other(recording, file, device):
    old = file.read_bytes()
    with pytest.raises(RecordingError, match="nothing to record"):
        Recording(device).save(file)
    with pytest.raises(RecordingError, match="cannot write"):
        recording.save(file / "below")
    assert file.read_bytes() == old
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_recording_can_be_extended_on_its_own_device(recording, file, device, tmp_path):
    assert Recording.extend(file, device) == recording
    assert Recording.extend(tmp_path / "new.json.gz", device) == Recording(device)
    with pytest.raises(RecordingError, match="was recorded on Made-up GPU, not this Other"):
        Recording.extend(file, replace(device, name="Other"))
    with pytest.raises(RecordingError, match="there is no folder"):
        Recording.extend(tmp_path / "no" / "new.json.gz", device)


def test_a_folder_that_may_not_be_written_is_found_before_anything_is_measured(
    device, tmp_path, monkeypatch
):
    monkeypatch.setattr("tunekit.recording.recording.os.access", lambda *how: False)
    with pytest.raises(RecordingError, match="is not writable"):
        Recording.extend(tmp_path / "new.json.gz", device)


def copy_of(recording, **changed):
    whole = {"sources": dict(recording.sources), "problems": dict(recording.problems)}
    return replace(recording, **{**whole, **changed})


def test_recordings_are_put_together_and_the_later_one_is_taken_whole(recording, problems, configs):
    other = copy_of(recording, problems={})
    trial = recording.problems[problems[0]].screening[configs[1]]
    third = replace(problems[0], m=96)
    for problem in (problems[0], third):
        other.put(problem, [trial], space_size=1)
    recording.absorb(other)
    assert set(recording.problems) == {*problems, third}
    assert list(recording.problems[problems[0]].screening) == [configs[1]]
    assert len(recording.problems[problems[1]].screening) == 3


def test_what_does_not_belong_into_a_recording_changes_nothing(recording, device):
    before = recording.to_bytes()
    elsewhere = copy_of(recording, device=replace(device, name="Another GPU"))
    rewritten = copy_of(recording, sources={**recording.sources, "tma": "another source"})
    mark = replace(recording.environment.fingerprint, compiler="compiler-2")
    rebuilt = copy_of(recording, environment=replace(recording.environment, fingerprint=mark))
    for other, reason in (
        (elsewhere, "made on Another GPU"),
        (rewritten, "another version of kernel tma"),
        (rebuilt, "made with compiler-2"),
        (Recording(device), "empty"),
    ):
        with pytest.raises(RecordingError, match=reason):
            recording.absorb(other)
    assert recording.to_bytes() == before


def test_one_command_puts_recordings_together(recording, problems, tmp_path):
    into, part = tmp_path / "into.json.gz", tmp_path / "part.json.gz"
    one, other = ({problem: recording.problems[problem]} for problem in problems)
    copy_of(recording, problems=one).save(into)
    copy_of(recording, problems=other).save(part)
    script = Path(__file__).parents[2] / "scripts" / "merge_recordings.py"
    done = subprocess.run(
        [sys.executable, script, into, part], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{into}: 2 problems, before 1" in done.stdout
    recording.save(tmp_path / "whole.json.gz")
    assert into.read_bytes() == (tmp_path / "whole.json.gz").read_bytes()


def test_the_further_shapes_are_a_dozen_and_none_of_the_suite():
    folder = Path(__file__).parents[2] / "docs" / "benchmarks"
    further, suite = (
        {(s.problem.m, s.problem.n, s.problem.k) for s in load_shapes(folder / name)}
        for name in ("further.yaml", "suite.yaml")
    )
    assert len(further) >= 12
    assert not further & suite
    recorded = Recording.load(shipped_recordings()[0]).problems
    plain = [p for p in recorded if (p.dtype, p.layout, p.batch) == ("bfloat16", "nt", 1)]
    assert further | suite == {(p.m, p.n, p.k) for p in plain}
