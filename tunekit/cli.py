"""The command line. Only this module prints, and only its `main` turns an error into a line.

Answers go to stdout; progress, notes and errors go to stderr. Exit codes: 0 done, 1 an error in one
line, 2 wrong usage, 130 interrupted. Each command loads what it needs when it runs.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tunekit import __version__
from tunekit.cli_files import FILES
from tunekit.cli_options import (
    FILE,
    Commands,
    cache_option,
    gpu_option,
    json_option,
    positive,
    usage_line,
    worker_count,
)
from tunekit.cli_reading import READING, completion
from tunekit.errors import StoreError, TunekitError
from tunekit.output import INTERRUPTED, answer, answer_json, answer_width, paint, say

if TYPE_CHECKING:
    from tunekit.cache import Store

SAMPLERS = ("transfer", "tpe", "gp", "random", "exhaustive")
"""What the tuner offers, repeated here so that `--help` need not load them."""


_DISK = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    warnings = _Warnings(logging.WARNING)
    logger = logging.getLogger("tunekit")
    logger.addHandler(warnings)
    try:
        code = cli.main(args=argv, prog_name="tunekit", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        say(usage_line(error))
        return error.exit_code
    except click.ClickException as error:
        say(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except TunekitError as error:
        say(str(error))
        return 1
    except OSError as error:  # where a text of click's own goes, or a temporary file
        if error.errno not in _DISK:
            raise
        say(f"cannot write: {error.strerror}: free some space")
        return 1
    finally:
        logger.removeHandler(warnings)
    return code if isinstance(code, int) else 0


class _Warnings(logging.Handler):
    """Shows what the library logs as lines of this program, wherever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"warning: {record.getMessage()}")


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="tunekit")
def cli() -> None:
    """Tune matmul kernels once, keep the proof, serve the best.

    \b
    tunekit tune --shapes shapes.yaml     fill the cache
    tunekit show                          what it holds, against the vendor's library
    tunekit explain 512 4096 4096         why one problem runs what it runs
    tunekit bench --shapes shapes.yaml    compare with torch, Inductor and a fixed list
    tunekit report                        the same as a page, with plots
    tunekit doctor                        is all well, and what mends what is not
    tunekit export-cache -o tuned.json    take it to another machine
    tunekit import-cache tuned.json       and load it there
    tunekit record -- python script.py    the shapes that a program of yours needs

    The cache is the file that TUNEKIT_CACHE names (a path or an SQLAlchemy URL), else tunekit.db in
    your user cache folder. `tunekit.matmul` reads it and never times anything itself.
    """


@cli.command(short_help="Fill the cache: find the fastest right config of each problem.")
@click.option(
    "--shapes", "shapes_file", type=FILE, metavar="FILE", help="YAML file with the problems."
)
@click.option(
    "--shape",
    "shape_texts",
    multiple=True,
    metavar="M,N,K[,DTYPE[,LAYOUT]]",
    help="One problem; may be given again. DTYPE is bfloat16 and LAYOUT nt unless given.",
)
@click.option("--misses", is_flag=True, help="The problems that programs missed in this cache.")
@cache_option
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cuda|cuda:N|replay|replay:FILE",
    help="Where to measure. `auto` is the GPU, or without one a replay of the shipped recording.",
)
@click.option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default=SAMPLERS[0],
    show_default=True,
    help="What proposes the next config; `transfer` learns from other problems too.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Configs to try a problem, on average [default: 80].",
)
@click.option(
    "--least",
    type=click.IntRange(min=1),
    help="Configs of them that each problem has, where the others may be moved [default: half].",
)
@click.option("--seconds", type=float, callback=positive, help="Stop the run after this long.")
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    help="End a problem after so many trials without a gain.",
)
@click.option(
    "--reach",
    type=float,
    callback=positive,
    metavar="PERCENT",
    help="End a problem whose best is this near the least time the GPU's rates allow, where known.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Of the search: the same seed tries the same configs.",
)
@click.option("--retune", is_flag=True, help="Tune again what is tuned, and let it replace.")
@click.option(
    "--stale",
    is_flag=True,
    help="Search nothing: after an upgrade, verify the best few stored configs again.",
)
@click.option(
    "--optuna-storage",
    metavar="URL",
    help="Keep each problem's Optuna study too: sqlite:///FILE, postgresql://... or journal:FILE.",
)
@click.option(
    "--workers",
    is_flag=False,
    flag_value="all",
    metavar="[N]",
    callback=worker_count,
    help="Share the work among so many processes, each with a GPU of its own [default: all GPUs].",
)
@click.option(
    "--ray",
    is_flag=False,
    flag_value="local",
    metavar="[ADDRESS]",
    help="Share it among the GPUs of a Ray cluster, or of one that is started on this host.",
)
@click.option(
    "--record", type=FILE, metavar="FILE", help="Write what was measured as a recording to replay."
)
@json_option
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--verbose", is_flag=True, help="Show each trial and what the space leaves out.")
def tune(
    shapes_file: str | None,
    shape_texts: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **settings: Any,
) -> int:
    """Find the fastest right config of each problem, measured against the vendor's library.

    \b
    tunekit tune --shapes shapes.yaml
    tunekit tune --shape 4096,4096,4096 --shape 1,6144,4096,float16 --trials 200
    tunekit tune --shapes shapes.yaml --sampler exhaustive --record sweep.json.gz
    tunekit tune --stale
    tunekit tune --misses
    tunekit tune --shapes shapes.yaml --workers

    Problems are C (M, N) = A (M, K) @ B (K, N). LAYOUT says for A, then B, whether the last (n) or
    the second-last (t) dimension is contiguous: nt is x @ w.t(), what torch.nn.Linear computes.

    \b
    shapes:                                    # a shapes file
      - {m: [1, 16, 512], n: 6144, k: 4096, count: 32, name: qkv}
      - {m: 1024, n: 1024, k: 1024, dtype: [float16, float32], layout: nn}
      - [5120, 5120, 5120]

    Every finished trial is kept at once. An interrupted run exits 130, and the same command again
    does only the rest. Without a GPU nothing is timed: rows are replayed, and say so.

    A row is stale when the kernel's source, the compiler, torch or the driver has changed since it
    was made. --stale tries the best row and the five fastest trials of each stale problem again,
    against the vendor, and writes a row for what is installed now: of every problem of this GPU in
    the cache, or of the shapes given. Rows that are current are left alone.

    A program counts in the cache what it multiplies without a row of its own; --misses tunes those
    problems of this GPU, and forgets the counts of those that have a row then.

    --workers shares the work among the GPUs of this host, --ray among those of a cluster; without
    a GPU, among cores that replay. Each kind of GPU is tuned once, however many cards there are.
    Workers on several hosts need a cache on a server: --cache postgresql://USER@HOST/DATABASE.
    """
    stale = settings["stale"]
    if (shapes_file is not None) + bool(shape_texts) + settings["misses"] > 1:
        raise click.UsageError("give only one of --shapes FILE, --shape M,N,K and --misses")
    if not stale and shapes_file is None and not shape_texts and not settings["misses"]:
        raise click.UsageError("give --shapes FILE, --shape M,N,K or --misses")
    if stale and settings["misses"]:
        raise click.UsageError("--stale verifies rows, and what is missed has none")
    if stale and settings["retune"]:
        raise click.UsageError(
            "--stale and --retune exclude each other: one verifies, one searches"
        )
    for name in ("workers", "ray"):
        if settings[name] is not None and (stale or settings["record"] is not None):
            other = "--stale" if stale else "--record"
            raise click.UsageError(f"{other} works on one GPU: it takes no --{name}")
    searching = ("record", "trials", "least", "patience", "reach", "optuna_storage")
    for name in searching if stale else ():
        if settings[name] is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"--stale searches nothing: it takes no {option}")
    if settings["least"] is not None and settings["least"] > (settings["trials"] or 0):
        raise click.UsageError("--least is of the --trials: give both, and no more of it")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    from tunekit.cli_request import TuneRequest
    from tunekit.cli_tune import run_tune

    return run_tune(
        TuneRequest(
            shapes_file, shape_texts, as_json=as_json, quiet=quiet, verbose=verbose, **settings
        )
    )


@cli.command(short_help="Show what is chosen for each problem, against the vendor.")
@cache_option
@gpu_option
@json_option
def show(cache: str | None, gpu: str | None, as_json: bool) -> None:
    """Show the best row of each problem, against the vendor.

    \b
    tunekit show
    tunekit show --json | jq '.keys[] | select(.choice == "vendor") | [.m, .n, .k]'

    The ratio is the vendor's time over Triton's: above 1 the Triton kernel is the faster. The grade
    says whether a row was made by the kernels and the compiler installed here (exact), by another
    compiler (other-compiler) or by kernels that have changed since (other-source: not served).

    trials/space: how many of the problem's legal configs were tried; failed: how many of them did
    not work. "off best" is how much slower the fastest of them is expected to be than the fastest
    there is and, in brackets, the most it is in nine of ten cases.
    """
    from tunekit.cache import Store
    from tunekit.table import SCHEMA, served_rows, table

    with Store.open(cache, create=False) as store:
        bests = store.bests(gpu=gpu)
        if not bests:
            raise StoreError(_nothing_to_show(store, gpu))
        rows = served_rows(bests, store.failures(gpu=gpu))
    if as_json:
        answer_json({"schema": SCHEMA, "keys": [row.to_dict() for row in rows]})
    else:
        answer(table(rows, width=answer_width(), paint=paint()))


for command in (*READING, *FILES, completion):
    cli.add_command(command)


def _nothing_to_show(store: Store, gpu: str | None) -> str:
    others = sorted({best.key.gpu for best in store.bests()})
    if gpu is not None and others:
        return f"{store.location} has no rows of the GPU {gpu!r}: it has {', '.join(others)}"
    if store.has_trials():
        return (
            f"the cache {store.location} has trials, but no best of any problem: finish with"
            " `tunekit tune --shapes FILE`"
        )
    return (
        f"the cache {store.location} is empty: fill it with `tunekit tune --shapes FILE` or "
        "`tunekit import-cache FILE`"
    )
