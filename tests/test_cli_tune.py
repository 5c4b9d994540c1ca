"""`tunekit tune` from end to end, on a small synthetic recording (no GPU made these times)."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tunekit.cache import Store
from tunekit.cli import main
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels import family
from tunekit.key import TuningKey
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.shapes import parse_shape
from tunekit.simulation import Noise, SimulatedRunner
from tunekit.trial import Measurement, Provenance, Status, Trial

DEVICE = replace(KNOWN_DEVICES["sm_90"], name="Synthetic GPU")
SHAPES = ("64,64,64", "128,256,512", "1,4096,4096")
CONFIGS = 40


def timed(median):
    return Measurement(
        median, median * 0.99, median * 1.01, median, median, median * 0.9, 50, "synthetic-1", 0.1
    )


def provenance(variant):
    return Provenance(
        fingerprint=family("matmul").fingerprint(variant),
        protocol="synthetic-1",
        tunekit="0",
        triton="0",
        torch="0",
        driver="0",
        device_name=DEVICE.name,
        created_at="2020-01-01T00:00:00",
    )


def record(path, *, broken=(), source=None, compiler=None):
    """Write a recording in which the config at place i takes 20 + i us and the vendor 25 us."""
    recording = Recording(DEVICE)
    for text in SHAPES:
        problem = parse_shape(text).problem
        space = family("matmul").space(problem, DEVICE)
        configs = space.configs[:: max(1, len(space) // CONFIGS)][:CONFIGS]
        for config in configs:
            origin = provenance(config.variant)
            if source is not None:
                origin = replace(origin, fingerprint=replace(origin.fingerprint, source=source))
            if compiler is not None:
                origin = replace(origin, fingerprint=replace(origin.fingerprint, compiler=compiler))
            recording.admit(config, origin)
        if text in broken:
            trials = [Trial(c, Status.COMPILE_ERROR, error="boom: no luck") for c in configs]
        else:
            trials = [Trial(c, Status.OK, timed(20.0 + i)) for i, c in enumerate(configs)]
        recording.put(problem, trials, vendor=timed(25.0), space_size=len(space))
    recording.save(path)
    return f"replay:{path}"


@pytest.fixture
def device(tmp_path):
    return record(tmp_path / "synthetic.json.gz")


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.yaml"
    path.write_text("shapes:\n" + "".join(f"- [{text}]\n" for text in SHAPES))
    return str(path)


def test_a_sweep_finds_the_best_and_says_the_same_as_show(device, shapes, capsys):
    argv = ["tune", "--shapes", shapes, "--device", device, "--sampler", "exhaustive", "--json"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == 1
    assert document["seconds"] >= 0
    assert set(document["trial_counts"]) == {status.value for status in Status}
    assert document["trial_counts"]["ok"] == sum(row["trials"] for row in document["keys"])
    assert [(row["m"], row["n"]) for row in document["keys"]] == [(1, 4096), (64, 64), (128, 256)]
    for row in document["keys"]:
        assert row["origin"] == "replayed"
        assert row["grade"] == "exact"
        assert row["vendor_us"] == 25.0
        assert row["trials"] == row["space_size"]
        assert 20.0 <= row["triton_us"] < 21.0
        assert row["choice"] == "triton"
    assert "nothing is timed here" in captured.err
    assert "Synthetic GPU" in captured.err
    assert main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == document["keys"]


def test_the_table_labels_replayed_rows_and_progress_goes_to_stderr(device, shapes, capsys):
    assert main(["tune", "--shapes", shapes, "--device", device, "--trials", "10"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("replayed ") >= 3
    assert "geometric mean of the ratio" in captured.out
    assert "Synthetic GPU (synthetic-gpu-sm90-132)" in captured.out
    for number in (1, 2, 3):
        assert f"[{number}/3] " in captured.err
    assert main(["show"]) == 0
    assert capsys.readouterr().out == captured.out


def test_quiet_still_says_that_nothing_is_timed(device, capsys):
    assert main(["tune", "--shape", SHAPES[0], "--device", device, "--trials", "4", "--quiet"]) == 0
    err = capsys.readouterr().err
    assert "nothing is timed here" in err
    assert err.count("\n") == 1


def test_verbose_lists_trials_and_accounts_for_the_whole_space(device, capsys):
    argv = ["tune", "--shape", SHAPES[0], "--device", device, "--trials", "4", "--verbose"]
    assert main(argv) == 0
    err = capsys.readouterr().err
    assert len(re.findall(r"^  \d/4 64x64x64 bfloat16 nt: pointer .* us$", err, re.M)) == 4
    legal, total = re.search(r"(\d+) of (\d+) configs are legal", err).groups()
    pruned = map(int, re.findall(r"(\d+) left out by the rule", err))
    assert int(legal) + sum(pruned) == int(total)


def test_without_a_gpu_auto_says_so(device, capsys, monkeypatch):
    monkeypatch.setattr("tunekit.runners.cuda_expected", lambda: False)
    file = device.partition(":")[2]
    monkeypatch.setattr("tunekit.replay.shipped_recordings", lambda: [file])
    assert main(["tune", "--shape", SHAPES[0], "--trials", "2", "--quiet"]) == 0
    assert "no GPU is usable here: replaying the recording made on Synthetic GPU" in (
        capsys.readouterr().err
    )


def test_a_recording_older_than_the_kernels_is_flagged_once(tmp_path, capsys):
    device = record(tmp_path / "old.json.gz", source="0123456789abcdef")
    argv = ["tune", "--shape", SHAPES[0], "--device", device, "--trials", "2", "--json"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.err.count("older than the kernels") == 1
    assert json.loads(captured.out)["keys"][0]["grade"] == "other-source"


def test_a_key_whose_configs_all_fail_is_an_error_after_the_others(tmp_path, shapes, capsys):
    device = record(tmp_path / "broken.json.gz", broken=SHAPES[:1])
    assert main(["tune", "--shapes", shapes, "--device", device, "--trials", "8", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert len(document["keys"]) == 2
    assert document["trial_counts"]["compile-error"] == 8
    last = captured.err.splitlines()[-1]
    assert last.startswith("tunekit: no config works for 64x64x64")
    assert "boom: no luck" in last


def test_a_second_run_does_nothing_again(device, shapes, capsys):
    argv = ["tune", "--shapes", shapes, "--device", device, "--trials", "8", "--json"]
    assert main(argv) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(argv) == 0
    second = json.loads(capsys.readouterr().out)
    assert sum(first["trial_counts"].values()) == 24
    assert sum(second["trial_counts"].values()) == 0
    assert second["keys"] == first["keys"]
    assert main([*argv, "--retune"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["trial_counts"].values()) == 24


OLD_COMPILER = "triton-3.5.0+ptxas-12.4"


@pytest.fixture
def before_the_upgrade(tmp_path, shapes, capsys):
    """A cache tuned under an older compiler than the one that is installed."""
    old = record(tmp_path / "old.json.gz", compiler=OLD_COMPILER)
    assert main(["tune", "--shapes", shapes, "--device", old, "--trials", "10"]) == 0
    assert "other-compiler, triton 3.5.0 -> " in capsys.readouterr().out


def test_after_an_upgrade_stale_verifies_the_best_few_of_the_whole_cache(
    before_the_upgrade, device, capsys
):
    argv = ["tune", "--stale", "--device", device, "--json"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [row["grade"] for row in document["keys"]] == ["exact"] * 3
    assert sum(document["trial_counts"].values()) == 15
    lines = captured.err.splitlines()
    assert lines[0].endswith("labelled replayed; a row is stale if the recording differs from it")
    assert lines[1] == "stale: 3 of 3 problems"
    assert any(re.match(r"  triton 3\.5\.0 -> \S+: 3 problems", line) for line in lines)
    cost = (
        "to verify and time again: 15 stored configs, and the vendor's call of 3 problems; nothing"
    )
    assert cost in captured.err
    assert captured.err.index(cost) < captured.err.index("[1/3]")
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert sum(json.loads(captured.out)["trial_counts"].values()) == 0
    assert "stale: 0 of 3 problems" in captured.err


def test_stale_of_some_shapes_leaves_the_others(before_the_upgrade, device, capsys):
    assert main(["tune", "--stale", "--shape", SHAPES[1], "--device", device, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["m"], row["grade"]) for row in document["keys"]] == [(128, "exact")]
    assert main(["show", "--json"]) == 0
    grades = {row["m"]: row["grade"] for row in json.loads(capsys.readouterr().out)["keys"]}
    assert grades == {1: "other-compiler", 64: "other-compiler", 128: "exact"}


def test_a_stale_key_that_does_not_run_any_more_is_told_with_its_command(
    before_the_upgrade, tmp_path, own_cache, capsys
):
    broken = record(tmp_path / "broken.json.gz", broken=SHAPES[:1])
    assert main(["tune", "--stale", "--device", broken, "--json"]) == 1
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["keys"]) == 3
    command = f"to tune it: tunekit tune --shape 64,64,64,bfloat16,nt --cache {own_cache}"
    told = [line for line in captured.err.splitlines() if command in line]
    assert len(told) == 2  # when it happens, and as the error at the end
    assert "none of its stored configs runs here: compile-error: boom: no luck" in told[0]


@pytest.mark.parametrize(
    "other",
    [["--retune"], ["--record", "r.json.gz"], ["--trials", "5"]],
    ids=["retune", "record", "trials"],
)
def test_stale_with_what_searches_is_wrong_usage(other, device, own_cache, capsys):
    assert main(["tune", "--stale", "--device", device, *other]) == 2
    assert "--stale" in capsys.readouterr().err
    assert not own_cache.exists()


def test_stale_without_a_cache_is_one_line_and_makes_none(device, own_cache, capsys):
    assert main(["tune", "--stale", "--device", device]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"tunekit: there is no cache at {own_cache}")
    assert err.count("\n") == 1
    assert not own_cache.exists()


BAD = {
    "no such file": (["--shapes", "absent.yaml"], "no such shapes file"),
    "empty list": (["--shapes", "empty.yaml"], "empty.yaml:1: `shapes` is an empty list"),
    "unknown field": (["--shapes", "unknown.yaml"], "unknown.yaml:2: unknown field 'mm'"),
    "size 0": (["--shapes", "zero.yaml"], "zero.yaml:2: m must be"),
    "size 0 on the line": (["--shape", "0,1,1"], "m must be"),
    "negative": (["--shape", "1,-1,1"], "n must be"),
    "2^40": (["--shape", f"1,1,{2**40}"], "k must be"),
    "dtype": (["--shape", "1,1,1,float61"], "unknown dtype 'float61'"),
    "no cuda": (["--shape", SHAPES[0], "--device", "cuda"], "no CUDA device"),
    "no such device": (["--shape", SHAPES[0], "--device", "tpu"], "unknown device 'tpu'"),
    "no recording": (["--shape", SHAPES[0], "--device", "replay:absent"], "absent"),
    "not recorded": (["--shape", "7,7,7"], "or this with --device cuda on a GPU"),
    "cache is a folder": (["--shape", SHAPES[0], "--cache", "folder"], "folder"),
    "cache in a file": (["--shape", SHAPES[0], "--cache", "text.db/x.db"], "text.db"),
    "cache is no database": (["--shape", SHAPES[0], "--cache", "text.db"], "text.db"),
    "cache not writable": (["--shape", SHAPES[0], "--cache", "/proc/x.db"], "/proc"),
    "folder not writable": (["--shape", SHAPES[0], "--cache", "/proc/a/x.db"], "/proc"),
    "record a replay": (["--shape", SHAPES[0], "--record", "new.json.gz"], "--record needs a GPU"),
}


@pytest.fixture
def bad_inputs(tmp_path, monkeypatch):
    folder = tmp_path / "bad"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "empty.yaml").write_text("shapes: []\n")
    (folder / "unknown.yaml").write_text("shapes:\n- {mm: 1, n: 1, k: 1}\n")
    (folder / "zero.yaml").write_text("shapes:\n- [0, 1, 1]\n")
    (folder / "text.db").write_text("this is not a database, whatever its name says\n" * 100)
    (folder / "folder").mkdir()
    return folder


def contents(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(
    case, device, bad_inputs, own_cache, capsys, no_gpu
):
    argv, expected = BAD[case]
    argv = argv if "--device" in argv else [*argv, "--device", device]
    before = contents(bad_inputs)
    assert main(["tune", *argv, "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tunekit: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert contents(bad_inputs) == before
    assert not own_cache.exists()


SLOW = """
import sys, time
from tunekit.cli import main
from tunekit.replay import ReplayRunner

screen = ReplayRunner.screen

def slow_screen(self, work):
    for found in screen(self, work):
        time.sleep(0.05)
        yield found

ReplayRunner.screen = slow_screen
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_trials_and_the_next_does_the_rest(
    number, device, shapes, own_cache, tmp_path, capsys
):
    argv = ["tune", "--shapes", shapes, "--device", device, "--trials", "20", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *argv, "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    seen = []
    for line in process.stderr:
        seen.append(line)
        if sum("/20 " in text for text in seen) == 11:
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    last = err.splitlines()[-1]
    kept = int(re.match(r"tunekit: interrupted: (\d+) finished trials of ", last).group(1))
    assert str(own_cache) in last
    assert "the same command does only the rest" in last
    assert "Traceback" not in err

    with Store.open(own_cache, create=False) as store:
        keys = [TuningKey.of(parse_shape(text).problem, DEVICE.slug) for text in SHAPES]
        stored = sum(len(store.trials(key)) for key in keys)
    assert 11 <= kept <= stored <= kept + 1
    assert main(argv) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert sum(document["trial_counts"].values()) == 60 - stored
    assert sum(row["trials"] for row in document["keys"]) == 60
    assert f"{stored} trials kept from before" in captured.err


def test_an_interrupt_before_the_first_new_trial_says_what_is_kept(device, capsys, monkeypatch):
    argv = ["tune", "--shape", SHAPES[0], "--device", device, "--trials"]

    def interrupt(self, work):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ReplayRunner, "screen", interrupt)
        assert main([*argv, "4"]) == 130
        assert "starts again" in capsys.readouterr().err
    assert main([*argv, "4"]) == 0
    monkeypatch.setattr(ReplayRunner, "screen", interrupt)
    assert main([*argv, "8"]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the 4 trials of earlier runs are kept" in last
    assert "only the rest" in last


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ({"contended": True}, "another process used the GPU"),
        ({"throttled": True}, "heat or power held its clocks down"),
    ],
)
def test_disturbed_finals_are_one_warning(device, shapes, capsys, monkeypatch, marks, words):
    finals = ReplayRunner.finals

    def disturbed(self, problem, configs):
        found = finals(self, problem, configs)
        trials = [replace(t, measurement=replace(t.measurement, **marks)) for t in found.trials]
        return replace(found, trials=tuple(trials))

    monkeypatch.setattr(ReplayRunner, "finals", disturbed)
    argv = ["tune", "--shapes", shapes, "--device", device, "--trials", "8", "--json", "--quiet"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    warnings = [line for line in captured.err.splitlines() if "finals" in line]
    assert len(warnings) == 1
    assert words in warnings[0]
    assert f"{parse_shape(SHAPES[0]).problem} and 2 more" in warnings[0]
    spent = json.loads(captured.out)["spent"]
    assert spent["search_s"] > 0
    assert spent["gpu_busy_share"] == 0


def test_the_number_that_is_printed_is_the_number_stored_and_exported(
    device, shapes, tmp_path, capsys, monkeypatch
):
    """Screening and finals give different times: all that is shown must be of the finals."""
    path = device.removeprefix("replay:")
    runner = SimulatedRunner(Recording.load(path), noise=Noise(launch=0.05, drift=0.05), seed=1)
    monkeypatch.setattr("tunekit.cli_tune.open_runner", lambda device, seed: runner)
    argv = ["tune", "--shapes", shapes, "--device", device, "--trials", "16", "--quiet"]
    assert main([*argv, "--json"]) == 0
    printed = {(r["m"], r["n"], r["k"]): r for r in json.loads(capsys.readouterr().out)["keys"]}
    exported = tmp_path / "rows.json"
    assert main(["show"]) == 0
    table = capsys.readouterr().out
    assert main(["export-cache", "-o", str(exported)]) == 0
    rows = json.loads(exported.read_text())
    with Store.open(None) as store:
        bests = store.bests()
        assert len(bests) == len(printed) == 3
        for best in bests:
            p = best.key.problem
            found = printed[p.m, p.n, p.k]
            assert found["triton_us"] == best.measurement.median_us
            assert found["triton_low_us"] == best.measurement.low_us
            assert found["vendor_us"] == best.vendor.median_us
            assert best.measurement.final
            assert f"{best.measurement.median_us:.2f} +-" in table
            final = [t.measurement for t, _ in store.trials(best.key) if t.config == best.config]
            assert best.measurement in final
    assert sorted(row["measurement"]["median_us"] for row in rows["bests"]) == sorted(
        best.measurement.median_us for best in bests
    )


def missed(counts, location=None):
    with Store.open(location) as store:
        store.put_device(DEVICE)
        store.record_misses(
            {
                TuningKey.of(parse_shape(text).problem, gpu): count
                for (text, gpu), count in counts.items()
            }
        )


def left():
    with Store.open() as store:
        return store.misses()


def test_misses_are_tuned_by_how_much_they_cost_and_forgotten(device, capsys):
    missed({("64,64,64", DEVICE.slug): 9, ("128,256,512", DEVICE.slug): 3})
    argv = ["tune", "--misses", "--device", device, "--sampler", "exhaustive", "--json"]
    assert main(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["m"], row["count"]) for row in document["keys"]] == [(64, 9), (128, 3)]
    assert left() == {}
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["keys"] == []
    assert "nothing to tune" in captured.err


def test_misses_of_another_gpu_and_what_cannot_be_tuned_are_left(device, capsys):
    with Store.open() as store:
        store.put_device(replace(DEVICE, name="Other GPU"))
    other = replace(DEVICE, name="Other GPU").slug
    missed(
        {
            ("64,64,64", DEVICE.slug): 1,
            ("65,64,64", DEVICE.slug): 1,
            ("64,64,64", other): 5,
        }
    )
    assert main(["tune", "--misses", "--device", device, "--trials", "5"]) == 0
    assert "a miss that cannot be tuned is left" in capsys.readouterr().err
    assert {(key.m, key.gpu) for key in left()} == {(65, DEVICE.slug), (64, other)}


def test_misses_of_a_cache_that_is_not_there_are_an_error(device, capsys):
    assert main(["tune", "--misses", "--device", device]) == 1
    assert "tunekit.db" in capsys.readouterr().err


@pytest.mark.parametrize("others", [["--shape", "1,2,3"], ["--shapes", "x"], ["--stale"]])
def test_misses_go_with_no_other_choice_of_problems(others, capsys):
    assert main(["tune", "--misses", *others]) == 2
    assert "`tunekit tune --help`" in capsys.readouterr().err


def test_what_was_recorded_of_a_program_is_tuned_as_it_is(device, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    import tunekit

    path = tmp_path / "recorded.yaml"
    with tunekit.record(path):
        for _ in range(3):
            torch.mm(torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16().t())
        torch.mm(torch.randn(3, 4).double(), torch.randn(4, 5).double())  # stops nothing
    argv = ["tune", "--shapes", str(path), "--device", device, "--trials", "5", "--json"]
    assert main(argv) == 0
    rows = json.loads(capsys.readouterr().out)["keys"]
    assert [(row["m"], row["count"]) for row in rows] == [(64, 3)]


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&-", 1)])
def test_a_closed_stream_is_no_traceback_at_the_end(closed, code, tmp_path):
    asked = "tune --device replay --shape 256,256,256 --trials 2 --sampler random"
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m tunekit {asked} --cache c.db {closed}",
        shell=True, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code
    assert "Traceback" not in done.stderr
