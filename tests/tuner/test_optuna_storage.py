"""A run that keeps Optuna's studies, killed in its midst, and what the same command does then."""

from __future__ import annotations

import subprocess
import sys

import optuna

import tunekit
from tunekit.search import open_storage

SHAPE = "4096,4096,4096"
TRIALS = 24
KILLED = """
import os, sys
import tunekit
from tunekit.tuner import TrialDone

done = []

def watch(event):
    done.extend([event] if isinstance(event, TrialDone) else [])
    if len(done) == 11:
        os.kill(os.getpid(), 9)

tunekit.tune({shapes!r}, **{settings!r}, on_event=watch)
"""


def test_a_killed_run_goes_on_with_its_study(tmp_path):
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    settings = {
        "device": "replay",
        "cache": str(tmp_path / "cache.db"),
        "trials": TRIALS,
        "optuna_storage": url,
    }
    code = KILLED.format(shapes=[SHAPE], settings=settings)
    killed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -9, killed.stderr
    report = tunekit.tune([SHAPE], **settings)
    assert report.trials_run == TRIALS - 11
    (name,) = optuna.get_all_study_names(open_storage(url))
    study = optuna.load_study(study_name=name, storage=open_storage(url))
    told = [t for t in study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    assert len({tuple(sorted(t.params.items())) for t in told}) == len(told) == TRIALS
    assert not [t for t in study.trials if t.state is optuna.trial.TrialState.RUNNING]
