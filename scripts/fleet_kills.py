"""Kill workers and the leader of a run at random moments, and count what was lost.

    python scripts/fleet_kills.py --crew ray --kills 20 > docs/benchmarks/fleet-kills-ray.json
    python scripts/fleet_kills.py --crew processes --kills 20 --database postgresql://user@host/empty

Every second kill is the leader's, `kill -9` both: of one worker the run has to go on, of the leader
the same command starts again. At the end every key has to be tuned once, with the trials that its
budget says; what was tried in vain has to be what was in flight; and no lease may be left, nor hold
for longer than a lease does. Exits 1 if anything else was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from slow_replay import command, small_recording

import tunekit
from tunekit.cache import Store
from tunekit.cache.claims import LEASE_SECONDS

TRIALS = 24
WAIT_S = 120.0


@dataclass
class Run:
    """What is killed and started again until it is done."""

    crew: str
    workers: int
    place: str
    folder: Path
    problems: int
    seconds: float
    leader: subprocess.Popen[str] | None = None
    pids: list[int] = field(default_factory=list)
    told: int = 0
    """Trials that a leader has printed, each of which has to be in the store."""

    @property
    def log(self) -> Path:
        """Where the workers write what they try."""
        return self.folder / "log"

    def start(self) -> None:
        """Start the command, for the first time or again."""
        recording = self.folder / "small.json.gz"
        if not recording.exists():
            small_recording(recording, self.problems)
        arguments = (self.crew, self.workers, self.place, recording, TRIALS, self.seconds, self.log)
        errors = (self.folder / "errors").open("a")
        self.leader = subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=errors, text=True
        )

    def hear(self, trials: int) -> bool:
        """Read on until so many trials more have ended; False if the run has."""
        assert self.leader is not None
        assert self.leader.stdout is not None
        for line in self.leader.stdout:
            name, *rest = line.split()
            if name == "workers":
                self.pids = [int(pid) for pid in rest]
            if name == "TrialDone":
                self.told += 1
                trials -= 1
                if trials <= 0:
                    return True
        return False

    def kill_leader(self) -> None:
        """Kill the leader, and read what it had printed."""
        assert self.leader is not None
        self.leader.kill()
        out, _ = self.leader.communicate()
        self.told += sum(line.startswith("TrialDone") for line in out.splitlines())


def main() -> int:
    """Kill as often as asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--crew", choices=("processes", "ray"), default="processes")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.05, help="what a trial takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="URL of an empty database; default: a file")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = chosen.database or str(Path(folder) / "cache.db")
        problems = max(4, chosen.kills)
        run = Run(chosen.crew, chosen.workers, place, Path(folder), problems, chosen.seconds)
        began = time.monotonic()
        kills = killed(run, chosen.kills, random.Random(chosen.seed))
        failures = [kill["failure"] for kill in kills if "failure" in kill]
        failures += checked(run, kills)
        errors = (run.folder / "errors").read_text()
    found = {
        "what": "workers and the leader of a run, killed at random moments",
        "command": "python " + " ".join(part.split("://")[0] for part in sys.argv),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tunekit": tunekit.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "database": "SQLite" if chosen.database is None else "PostgreSQL",
        "crew": chosen.crew,
        "workers": chosen.workers,
        "seconds": round(time.monotonic() - began, 1),
        "kills_of_a_worker": sum(kill["of"] == "worker" for kill in kills),
        "kills_of_the_leader": sum(kill["of"] == "leader" for kill in kills),
        "lease_seconds": LEASE_SECONDS,
        "longest_until_free_s": max((kill.get("free_after_s", 0.0) for kill in kills), default=0.0),
        "failures": failures,
        "kills": kills,
    }
    print(json.dumps(found, indent=1))
    if failures:
        print(errors, file=sys.stderr)
    return 1 if failures else 0


def killed(run: Run, count: int, chance: random.Random) -> list[dict[str, Any]]:
    """Kill so often and let the run end; say what each kill hit, and what it took to go on."""
    kills: list[dict[str, Any]] = []
    run.start()
    each = max(1, TRIALS * run.problems // (2 * count))
    for number in range(count):
        if not run.hear(chance.randint(1, 2 * each)):
            return [*kills, {"of": "nobody", "failure": "the run ended before it was killed"}]
        time.sleep(chance.random() * run.seconds)
        if number % 2:
            run.kill_leader()
            kills.append({"of": "leader", "after_trials": run.told, **wait_until_free(run)})
            run.start()
        else:
            pid = chance.choice(run.pids)
            os.kill(pid, signal.SIGKILL)
            kills.append({"of": "worker", "after_trials": run.told})
    run.hear(TRIALS * run.problems + 1)
    assert run.leader is not None
    run.leader.communicate()
    if run.leader.returncode:
        kills[-1]["failure"] = f"the last run ended with {run.leader.returncode}"
    return kills


def wait_until_free(run: Run) -> dict[str, Any]:
    """Wait until the leases of those that were killed, or end with their leader, hold no more."""
    began = time.monotonic()
    with Store.open(run.place) as store:
        stored = sum(store.tried().values())
        while store.leases():
            if time.monotonic() - began > WAIT_S + LEASE_SECONDS:
                return {"failure": "a lease holds longer than its time"}
            time.sleep(0.05)
    found: dict[str, Any] = {"free_after_s": round(time.monotonic() - began, 2)}
    if stored < run.told:
        found["failure"] = f"{run.told - stored} trials that were told are not stored"
    return found


def checked(run: Run, kills: list[dict[str, Any]]) -> list[str]:
    """Say what is not as it has to be at the end."""
    if not run.log.exists():
        return ["nothing was tried"]
    lines = [line.split(" ", 2) for line in run.log.read_text().splitlines()]
    trials = sum(what == "trial" for _, what, _ in lines)
    finals = sum(what == "finals" for _, what, _ in lines)
    with Store.open(run.place) as store:
        bests, counts, leases = store.bests(), store.tried(), store.leases()
    # A kill costs each worker that ends by it the one thing that it was at.
    in_flight = sum(run.workers if kill["of"] == "leader" else 1 for kill in kills)
    stored = sum(counts.values())
    found = []
    if len(bests) != run.problems or len({best.key for best in bests}) != run.problems:
        found.append(f"{len(bests)} rows for {run.problems} keys")
    if stored != TRIALS * run.problems or min(counts.values()) < TRIALS // 2:
        found.append(f"{stored} trials are stored, {TRIALS} for each of {run.problems} keys wanted")
    if not 0 <= trials + finals - stored - run.problems <= in_flight:
        found.append(f"{trials} trials and {finals} finals were run, {in_flight} in flight at most")
    if leases:
        found.append(f"{len(leases)} leases are left")
    return found


if __name__ == "__main__":
    sys.exit(main())
