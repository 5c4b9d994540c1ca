"""Ask ranks of one job what they run for the same random problems.

    python scripts/ranks.py [--ranks 8] [--problems 10000] > ranks.json

Each rank is a process of its own that was given the same cache, and every second one meets the
problems in another order. The last but one reads a copy in a folder it may not write. The last
starts late, when the others have answered half of the problems. When all have read, another process
stores faster rows for a part of the problems, as a `tune` would; then the ranks answer the other
half, from what they have read. The problems are those of an H200, and what is asked is the decision
that `tunekit.matmul` makes, without the kernels. Prints one JSON document; exits 1 if two differ.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import tunekit
from tunekit.cache import Store
from tunekit.decision import decide
from tunekit.device import KNOWN_DEVICES
from tunekit.kernels.matmul_family import MATMUL
from tunekit.key import Problem, TuningKey
from tunekit.lookup import RowTable
from tunekit.reading import read_table
from tunekit.trial import Best, Choice, Measurement, Provenance

H200 = KNOWN_DEVICES["sm_90"]
SIZES = (1, 7, 16, 33, 64, 100, 128, 256, 500, 512, 1024, 2048, 4096, 5000, 8192)
DTYPES = ("float16", "bfloat16", "float32")


def random_problems(count: int, seed: int) -> list[Problem]:
    """Return random problems, many of them near one another."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        m, n, k = (rng.choice(SIZES) if rng.random() < 0.7 else rng.randint(1, 9000) for _ in "mnk")
        dtype, layout = rng.choice(DTYPES), rng.choice(("nn", "nt", "tn", "tt"))
        plain = Problem("matmul", m, n, k, dtype, layout=layout)
        made.append(replace(plain, aligned=plain.naturally_aligned()))
    return made


def fill(location: Path, rows: int, problems: int, *, faster: bool = False) -> int:
    """Store rows, some for the very problems that are asked; return how many were stored."""
    rng = random.Random(3 + faster)
    asked = random_problems(problems, seed=7)
    chosen = [*rng.sample(asked, rows // 2), *random_problems(rows - rows // 2, seed=11)]
    stored = 0
    with Store.open(location) as store:
        store.put_device(H200)
        for problem in chosen:
            config = replace(MATMUL.default_config(problem, H200), group_size=rng.choice((1, 8)))
            us = 5.0 if faster else rng.choice((10.0, 11.0))
            stored += store.put_best(_best(problem, config, us, rng))
    return stored


def _best(problem: Problem, config: Any, us: float, rng: random.Random) -> Best:
    times = Measurement(us, us - 1, us + 1, us - 1, us + 1, us - 1, 21, "test", 0.5, final=True)
    mark = MATMUL.fingerprint(config.variant)
    if rng.random() < 0.3:
        mark = replace(mark, compiler="triton-0.0.0")
    made = Provenance(mark, "test", "0", "3", "2", "1", H200.name, "2026-01-01T00:00:00Z")
    choice = rng.choice((Choice.TRITON, Choice.TRITON, Choice.VENDOR))
    return Best(TuningKey.of(problem, H200.slug), choice, config, times, times, 10, 100, made)


def rank_main(number: int, where: Path, count: int, pipe: Any) -> None:
    """Read the cache, answer half, wait to be let go, answer the rest, and send all of it."""
    problems = random_problems(count, seed=7)
    order = list(range(count))
    if number % 2:
        random.Random(number).shuffle(order)
    os.environ["TUNEKIT_CACHE"] = str(where / "tunekit.db")
    MATMUL.fingerprint("pointer")
    read_only = where.name == "read-only"
    if read_only and os.geteuid() == 0:  # whom no permission keeps from writing
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    assert not read_only or not os.access(where, os.W_OK)
    table = read_table(H200, 0.0).table
    answers = {i: answer(table, problems[i]) for i in order[: count // 2]}
    pipe.send("half")
    pipe.recv()
    answers |= {i: answer(table, problems[i]) for i in order[count // 2 :]}
    pipe.send([answers[i] for i in range(count)])


def answer(table: RowTable, problem: Problem) -> str:
    """Return what runs for a problem, and by which row."""
    found = decide(table, problem)
    row = found.answer
    text = "none" if row is None else f"{row.grade.value} {row.best.key} {row.best.config}"
    return f"{'triton' if found.triton else 'vendor'} {text}"


def run(
    folder: Path, *, ranks: int, problems: int, rows: int, start: str = "spawn"
) -> dict[str, Any]:
    """Fill a cache in a folder, run the ranks, and say whether they chose alike.

    `start` is how `multiprocessing` starts them: afresh (`spawn`), or by `fork`.
    """
    location = folder / "tunekit.db"
    fill(location, rows, problems)
    locked = folder / "read-only"
    locked.mkdir()
    shutil.copy(location, locked)
    for path, mode in ((folder, 0o755), (locked / location.name, 0o444), (locked, 0o555)):
        path.chmod(mode)
    places = [folder] * ranks
    places[-2] = locked
    context = multiprocessing.get_context(start)
    pipes = []
    for number, place in enumerate(places):
        if number == ranks - 1:  # late: the others have answered
            for pipe in pipes:
                pipe.recv()
        mine, theirs = context.Pipe()
        arguments = (number, place, problems, theirs)
        context.Process(target=rank_main, args=arguments, daemon=True).start()
        theirs.close()  # so that a rank that ends early is an end of file, not a wait
        pipes.append(mine)
    pipes[-1].recv()
    stored = fill(location, rows // 4 + 1, problems, faster=True)
    for pipe in pipes:
        pipe.send("go")
    answers = {number: pipe.recv() for number, pipe in enumerate(pipes)}
    grades = Counter(text.split()[1] for text in answers[0])
    differing = unlike(answers)
    return {
        "ranks": ranks, "problems": problems, "rows": rows, "late": ranks - 1,
        "read_only": ranks - 2, "stored_while_they_ran": stored,
        "by_triton": sum(text.startswith("triton") for text in answers[0]),
        "grades": dict(sorted(grades.items())), "alike": not differing,
        "differing": differing[:20],
    }  # fmt: skip


_NOBODY = 65534


def unlike(answers: dict[int, list[str]]) -> list[str]:
    """Return the problems for which a rank runs something else than the first."""
    first = min(answers)
    return [
        f"problem {number}: {mine} on rank {rank}, {theirs} on rank {first}"
        for rank in sorted(answers)
        for number, (mine, theirs) in enumerate(zip(answers[rank], answers[first], strict=True))
        if mine != theirs
    ]


def main() -> int:
    """Run the ranks and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--problems", type=int, default=10_000)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            Path(folder), ranks=arguments.ranks, problems=arguments.problems,
            rows=arguments.problems // 5,
        )  # fmt: skip
    document = {
        "what": "what ranks with the same cache run for the same random problems",
        "command": "python " + " ".join(sys.argv),
        "tunekit": tunekit.__version__,
        **found,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(document, indent=1))
    return 0 if found["alike"] else 1


if __name__ == "__main__":
    sys.exit(main())
