"""`tunekit tune --workers` and `--ray`, and `tunekit.tune` with the same."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

import tunekit
from tunekit.cli import main
from tunekit.errors import ProblemError
from tunekit.fleet import hiring
from tunekit.recording import Recording


def printed(capsys, *arguments):
    assert main(["tune", "--json", "--sampler", "random", "--trials", "8", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    return document["keys"], document["trial_counts"]


@pytest.fixture
def asked(recording):
    """The arguments that tune what was recorded."""
    problems = Recording.load(recording).problems
    shapes = [f"--shape={p.m},{p.n},{p.k},{p.dtype},{p.layout}" for p in problems]
    return ["--device", f"replay:{recording}", *shapes]


def test_two_workers_print_what_one_run_prints(asked, tmp_path, capsys):
    alone = printed(capsys, *asked, "--cache", str(tmp_path / "alone.db"))
    many = printed(capsys, *asked, "--cache", str(tmp_path / "many.db"), "--workers", "2")
    assert many == alone
    assert len(alone[0]) == 4


def test_ray_prints_what_one_run_prints(asked, tmp_path, capsys):
    pytest.importorskip("ray", reason="no Ray: install tunekit-triton[ray]")
    alone = printed(capsys, *asked, "--cache", str(tmp_path / "alone.db"))
    many = printed(capsys, *asked, "--cache", str(tmp_path / "ray.db"), "--ray", "--workers", "2")
    assert many == alone


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--workers", "0"], 2, "is not a whole number above 0"),
        (["--workers", "two"], 2, "is not a whole number above 0"),
        (["--workers", "1000000"], 2, "1000000 is more than the 100000 that a run can have"),
        (["--workers", "9" * 5000], 2, "is more than the 100000 that a run can have"),
        (["--workers", "2", "--stale"], 2, "--stale works on one GPU: it takes no --workers"),
        (["--ray", "--record", "r.json.gz"], 2, "--record works on one GPU: it takes no --ray"),
        (["--workers", "2", "--device", "cuda:1"], 1, "cuda:1 is one GPU"),
        (["--workers", "2", "--device", "cuda:x"], 1, "unknown device 'cuda:x'"),
        (["--workers", "2", "--device", "replay:/nowhere.gz"], 1, "/nowhere.gz"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, code, words, capsys, own_cache):
    assert main(["tune", "--shape", "512,512,512", *arguments]) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert not own_cache.exists()


def test_a_host_replays_with_as_many_processes_as_it_bears(monkeypatch, caplog, tmp_path):
    asked = []

    class Counted(Exception):
        """Nothing is started."""

    def count(posts):
        asked.append(len(posts))
        raise Counted

    monkeypatch.setattr(hiring, "Processes", count)
    for workers in (1, hiring.MOST_REPLAYING, 50_000):
        with pytest.raises(Counted):
            hiring.hire(None, "replay", tmp_path / "c.db", hiring.Wanted(workers))
    assert asked == [1, hiring.MOST_REPLAYING, hiring.MOST_REPLAYING]
    (warning,) = caplog.messages
    assert f"50000 workers were asked for and one host replays with {asked[-1]} at most" in warning


def test_without_ray_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["tune", "--shape", "512,512,512", "--device", "replay", "--ray"]) == 1
    assert "pip install 'tunekit-triton[ray]'" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray")
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001"])
def test_a_cluster_that_is_not_there_is_one_line(address, capsys):
    argv = ["tune", "--shape", "512,512,512", "--device", "replay", "--ray", address]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert f"cannot use the Ray cluster {address}: " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("workers", [0, True, "two", 1.5])
def test_a_number_of_workers_that_is_none_is_refused(workers):
    with pytest.raises(ProblemError, match='workers must be a whole number above 0, or "all"'):
        tunekit.tune(["512,512,512"], device="replay", workers=workers)
