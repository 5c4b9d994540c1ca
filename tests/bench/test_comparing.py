"""The arithmetic of a comparison, and the times of a recording."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.recording.conftest import CONFIGS, PROBLEMS, provenance, timed
from tests.recording.conftest import DEVICE as RECORDED
from tunekit.bench import Ceilings, Entry, ReplayTimes, Timed, compare
from tunekit.bench.fixed_lists import TUTORIAL, list_of_15
from tunekit.bench.results import AGAINST, BenchReport, Compared
from tunekit.cache import Store
from tunekit.cli import main
from tunekit.cli_reading import COMPARISONS
from tunekit.config import Config
from tunekit.device import KNOWN_DEVICES
from tunekit.errors import RecordingError
from tunekit.kernels import current_fingerprint, family
from tunekit.key import Problem, TuningKey
from tunekit.recording import Recording
from tunekit.replay import ReplayRunner
from tunekit.trial import Best, Choice, Grade, Measurement, Origin

BIG, SMALL = PROBLEMS
OURS = Config("pointer", 64, 64, 32)


def measured(us):
    return Measurement(us, us * 0.9, us * 1.1, us, us, us, 41, "test-1")


def compared(problem=BIG, **us):
    times = {name.replace("_", "-"): measured(time) for name, time in us.items()}
    return Compared(problem, 1, None, Choice.TRITON, Grade.EXACT, OURS, Timed(times, {}))


def report(*problems, against=("torch",)):
    ceilings = Ceilings(1000.0, {"float16": 100.0})
    return BenchReport("A", "a", Origin.MEASURED, "test-1", against, ceilings, problems)


def test_a_ratio_is_anothers_time_over_ours_with_both_at_their_ends():
    one = compared(tunekit=10.0, torch=15.0)
    assert one.ratio("torch") == 1.5
    assert one.bounds("torch") == pytest.approx((13.5 / 11, 16.5 / 9))
    assert one.ratio("inductor") is one.bounds("inductor") is None


def test_the_mean_is_geometric_over_those_that_were_timed():
    found = report(
        compared(tunekit=1.0, torch=2.0), compared(tunekit=1.0, torch=8.0), compared(tunekit=1.0)
    )
    assert found.geometric_mean("torch") == pytest.approx(4.0)
    assert found.geometric_mean("inductor") is None


def test_the_roofline_is_the_slower_of_bytes_and_arithmetic():
    ceilings = Ceilings(gb_per_s=1000.0, tflops={"float16": 100.0})
    thin = Problem("matmul", 1, 4096, 4096, "float16")
    assert ceilings.least_us(thin) == pytest.approx(thin.min_bytes / 1e6)
    cube = Problem("matmul", 4096, 4096, 4096, "float16")
    assert ceilings.least_us(cube) == pytest.approx(2 * 4096**3 / 1e8)
    assert ceilings.least_us(replace(cube, dtype="float32", out_dtype="")) is None
    one = compared(problem=cube, tunekit=2 * ceilings.least_us(cube))
    assert one.share(ceilings) == pytest.approx(0.5)


def test_the_fixed_list_is_legal_where_tiles_fit():
    problem = Problem("matmul", 4096, 4096, 4096, "bfloat16")
    configs = list_of_15()
    assert len(set(configs)) == 15
    kernels, device = family("matmul"), KNOWN_DEVICES["sm_90"]
    assert [kernels.violation(config, problem, device) for config in configs] == [None] * 15
    assert len(TUTORIAL) == 8


def test_what_help_offers_is_what_there_is():
    assert COMPARISONS == AGAINST


@pytest.fixture
def recording():
    made = Recording(RECORDED)
    for config in CONFIGS:
        made.admit(config, provenance(config))
    made.admit(OURS, provenance(OURS))
    for problem in PROBLEMS:
        screening = [timed(OURS, 20.0), timed(CONFIGS[1], 30.0)]
        vendor = timed(OURS, 25.0).measurement
        finals = [timed(OURS, 22.0, final=True)]
        made.put(problem, screening, finals=finals, vendor=vendor, space_size=9)
    return made


@pytest.fixture
def tuned(own_cache):
    """A store with a Triton row for the large problem and a vendor row for the small one."""
    with Store.open(own_cache) as store:
        store.put_device(RECORDED)
        for problem, choice in ((BIG, Choice.TRITON), (SMALL, Choice.VENDOR)):
            made = replace(provenance(OURS), fingerprint=current_fingerprint("matmul", "pointer"))
            time = replace(measured(21.0), error_ratio=0.1)
            key = TuningKey.of(problem, RECORDED.slug)
            store.put_best(Best(key, choice, OURS, time, measured(25.0), 2, 9, made))
        yield store


def times_of(recording):
    return ReplayTimes(ReplayRunner(recording), PROBLEMS)


def test_a_replay_gives_the_recorded_times_of_what_the_store_chose(recording, tuned):
    found = compare([Entry(p) for p in PROBLEMS], tuned, times_of(recording), against=["torch"])
    big, small = found.problems
    assert (big.runs, big.grade, big.config) == (Choice.TRITON, Grade.EXACT, OURS)
    assert big.ours.median_us == 22.0  # the final time, not the screening
    assert big.ratio("torch") == pytest.approx(25 / 22)
    assert (small.runs, small.config, small.ratio("torch")) == (Choice.VENDOR, None, 1.0)
    assert found.origin is Origin.REPLAYED
    assert found.ceilings.tflops == {"float16": pytest.approx(BIG.flops / 22.0 / 1e6)}


def test_only_torch_is_in_a_recording(recording, tuned):
    with pytest.raises(RecordingError, match="inductor: compare with torch"):
        compare([Entry(BIG)], tuned, times_of(recording), against=["torch", "inductor"])


def test_a_problem_that_was_not_recorded_is_an_error_that_lists_those_that_were(recording):
    with pytest.raises(RecordingError, match="which holds"):
        ReplayTimes(ReplayRunner(recording), [replace(BIG, m=7)])


def test_a_config_that_was_not_recorded_is_left_out_with_the_reason(recording, tuned):
    row = next(best for best in tuned.bests() if best.key.problem == BIG)
    other = replace(OURS, block_m=32, num_warps=2)
    tuned.put_best(replace(row, config=other), force=True)
    found = compare([Entry(BIG)], tuned, times_of(recording), against=["torch"])
    ((problem, name, reason),) = found.untimed()
    assert (problem, name) == (BIG, "tunekit")
    assert "was not recorded" in reason
    assert found.geometric_mean("torch") is None


@pytest.fixture
def bench(recording, tuned, tmp_path, capsys):
    """Return a function that runs the command on the recording and gives its exit code and text."""
    recording.save(tmp_path / "r.json.gz")
    shapes = tmp_path / "shapes.yaml"
    lines = [f"  - {{m: {p.m}, n: {p.n}, k: {p.k}, dtype: float16}}\n" for p in PROBLEMS]
    shapes.write_text("shapes:\n" + "".join(lines))

    def run(*argv):
        device = f"replay:{tmp_path / 'r.json.gz'}"
        code = main(["bench", "--shapes", str(shapes), "--device", device, *argv])
        return code, capsys.readouterr()

    return run


def test_the_command_shows_every_time_with_its_unit(bench):
    code, said = bench()
    assert code == 0
    assert "replayed from a recording" in said.out
    row = next(line for line in said.out.splitlines() if line.startswith(str(BIG)))
    assert "22.00 +-0.10" in row
    assert "25.00" in row
    assert "1.136 (1.127-1.146)" in row
    assert "geometric mean of torch us / tunekit us (above 1 tunekit wins): 1.066" in said.out


def test_below_the_ratio_asked_for_it_exits_1_and_names_the_worst(bench):
    code, said = bench("--fail-below", "1.1")
    assert code == 1
    assert f"the geometric mean is 1.066, below 1.1; the worst is {SMALL}" in said.err
    assert bench("--fail-below", "1.06")[0] == 0


def test_what_could_not_be_timed_fails_a_gate(bench, tuned):
    row = next(best for best in tuned.bests() if best.key.problem == BIG)
    tuned.put_best(replace(row, config=replace(OURS, block_m=32, num_warps=2)), force=True)
    assert bench()[0] == 0
    code, said = bench("--fail-below", "0.5")
    assert code == 1
    assert f"tunekit could not be timed on {BIG}" in said.err


def test_json_has_the_same_numbers(bench):
    code, said = bench("--json", "--fail-below", "1.1")
    plain = json.loads(said.out)
    assert (code, plain["passed"], plain["fail_below"]) == (1, False, 1.1)
    big = next(row for row in plain["problems"] if row["m"] == BIG.m)
    assert big["times"]["tunekit"] == {"median_us": 22.0, "low_us": 21.9, "high_us": 22.1}
    assert big["ratios"]["torch"]["ratio"] == pytest.approx(25 / 22)
    assert big["tflops"] == pytest.approx(BIG.flops / 22 / 1e6)
    assert plain["geometric_mean"]["torch"] == pytest.approx((25 / 22) ** 0.5)


@pytest.mark.parametrize("name", ["cublas", "", "torch,magma"])
def test_unknown_comparisons_are_wrong_usage(bench, name):
    code, said = bench("--against", name)
    assert code == 2
    assert "torch, inductor, triton-list" in said.err


def test_an_unknown_device_is_an_error(tuned, tmp_path, capsys):
    shapes = tmp_path / "s.yaml"
    shapes.write_text("shapes: [[64, 64, 64]]")
    assert main(["bench", "--shapes", str(shapes), "--device", "tpu"]) == 1
    assert "unknown device 'tpu'" in capsys.readouterr().err
