"""Workers that measure: on a stand-in for a GPU, and on what GPUs there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tunekit.cache import Store
from tunekit.cli import main
from tunekit.fleet.crews import Processes
from tunekit.fleet.leading import Lead
from tunekit.fleet.post import Post
from tunekit.key import Problem
from tunekit.search import Budget
from tunekit.trial import Origin
from tunekit.tuner import Task, run


def test_a_worker_with_a_gpu_gives_measured_rows(tmp_path, monkeypatch):
    """Its measuring process and compilers are its own; the leader has neither, and no GPU."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fakes"))
    import fake_gpu

    cache = str(tmp_path / "c.db")
    opener = partial(fake_gpu.open_runner, locks=tmp_path / "locks")
    lead = Lead(Processes([Post(opener, "cuda:0", cache)]), cache)
    tasks = [Task(Problem("matmul", m, 512, 512, "bfloat16")) for m in (64, 128)]
    try:
        (runner,) = lead.runners(120)
        assert (runner.device, runner.origin) == (fake_gpu.H200, Origin.MEASURED)
        runner.prepare([task.problem for task in tasks])
        assert all(len(runner.space(task.problem)) > 100 for task in tasks)
        with Store.open(cache) as store:
            lead.attach(store)
            report = run(
                tasks, runner=runner, store=store, sampler="random", budget=Budget(trials=8)
            )
            assert store.leases() == {}
            rows = [(best.trials, best.provenance.origin) for best in store.bests()]
            assert sum(store.tried().values()) == report.trials_run == 16
    finally:
        lead.close()
    assert sorted(origin for _, origin in rows) == [Origin.MEASURED] * 2
    assert report.spent.compilations > 0
    assert report.spent.compiled_late == 0


LEADER = """
import sys
from functools import partial
from pathlib import Path
import fake_gpu
from tunekit import cli_tune
from tunekit.cli import main
from tunekit.fleet import hiring

hiring.gpu_count = lambda: 1
cli_tune.open_runner = partial(fake_gpu.open_runner, locks=Path(sys.argv[1]))
code = main(["tune", "--shape=64,512,512", "--device=cuda", "--workers", "--trials=8", "--json"])
print([code, "torch" in sys.modules, "triton" in sys.modules], file=sys.stderr)
"""


def test_the_leader_of_a_measured_run_loads_neither_torch_nor_a_kernel(own_cache, tmp_path):
    fakes = str(Path(__file__).parents[1] / "fakes")
    done = subprocess.run(
        [sys.executable, "-c", LEADER, str(tmp_path / "locks")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([fakes, *filter(None, sys.path)])},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1:] == ["[0, False, False]"], done.stderr
    (row,) = json.loads(done.stdout)["keys"]
    assert (row["grade"], row["origin"], row["trials"]) == ("exact", "measured", 8)
    assert own_cache.exists()


@pytest.mark.gpu
def test_all_gpus_of_this_host_tune_together(own_cache, capsys):
    shapes = ["--shape=512,512,512", "--shape=64,4096,4096", "--shape=256,1024,512"]
    argv = ["tune", *shapes, "--device", "cuda", "--workers", "--trials", "12", "--json"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert sum(document["trial_counts"].values()) == 36
    assert {key["origin"] for key in document["keys"]} == {"measured"}
    assert document["spent"]["compiled_late"] == 0
    with Store.open(own_cache, create=False) as store:
        assert store.leases() == {}
        assert {best.provenance.device_name for best in store.bests()}
    assert main(argv) == 0
    assert sum(json.loads(capsys.readouterr().out)["trial_counts"].values()) == 0
