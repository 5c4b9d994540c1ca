"""The tables made of what the benchmarks of a whole tune wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "tune_table.py"
SPENT = dict.fromkeys(
    ("start_s", "compile_s", "verify_s", "time_s", "idle_s", "search_s", "gpu_busy_share"), 0.5
)
PROBLEM = "256x256x256 bfloat16 nt"
TUNES = {
    "tunes": [
        {"seed": 0, "wall_s": 81.25, "spent": SPENT, "trials": 768,
         "fewest_trials_of_a_problem": 24, "no_kernel_was_compiled_before": True},
    ],
    "inductor": {"wall_s": 250.0, "over_ours": 3.0769, "problems": {PROBLEM: 12.5, "other": 2.0}},
    "repeated": {
        "tunes": 5, "slowest_over_fastest_geomean": 1.0123, "slowest_over_fastest_worst": 1.031,
        "same_config_in_all": 1, "same_choice_of_vendor_or_triton_in_all": 2, "problems": [{}, {}],
    },
}  # fmt: skip
SWEEP = {
    "sweep": {"configs": {PROBLEM: 515}},
    "regrets": [
        {"problem": PROBLEM, "best_us": 5.25, "vendor_us": None, "sweeps_first_regret": 0.0,
         "tuned": [{"trials": 24, "seed": 0, "regret": 0.004},
                   {"trials": 12, "seed": 0, "regret": 0.0125}]},
    ],
    "summary": {"24": {"tunes": 1, "regret_geomean": 0.004, "regret_worst": 0.004,
                       "within_2pct": 1.0}},
}  # fmt: skip


def test_the_tables_say_what_was_measured(tmp_path):
    tunes, sweep = tmp_path / "tune.json", tmp_path / "sweep.json"
    tunes.write_text(json.dumps(TUNES))
    sweep.write_text(json.dumps(SWEEP))
    done = subprocess.run(
        [sys.executable, SCRIPT, tunes, "--sweep", sweep],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert "| 0 | 81.2 | 0.5 | 0.5 | 0.5 | 0.5 | 0.5 | 0.5 | 50% | 768 | 24 | no |" in lines
    assert "3.08 times as long; median 7.2 s a problem, most 12.5 s" in done.stdout
    assert "is 1.23% in the geometric mean and 3.10% at worst" in done.stdout
    assert f"| {PROBLEM} | 515 | 5.25 | - | 0.00% | 1.25% | 0.40% |" in lines
    assert "24 trials: geometric mean 0.40%, worst 0.40%, 100% within 2 % (1 tunes)." in lines
