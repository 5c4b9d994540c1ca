"""The command line. Only this module prints, and only its `main` turns an error into a line.

Answers go to stdout; progress, notes and errors go to stderr. Exit codes: 0 done, 1 an error in one
line, 2 wrong usage, 130 interrupted. Each command loads what it needs when it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tunekit import __version__
from tunekit.cli_options import Commands, cache_option, gpu_option, json_option, positive
from tunekit.cli_reading import READING
from tunekit.errors import StoreError, TunekitError
from tunekit.output import INTERRUPTED, answer, answer_json, answer_width, say

if TYPE_CHECKING:
    from tunekit.cache import Store

SAMPLERS = ("transfer", "tpe", "gp", "random", "exhaustive")
POLICIES = ("faster", "newer", "keep", "replace", "fail")
FORMATS = ("json", "sqlite")
"""What the tuner and the store offer, repeated here so that `--help` need not load them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    warnings = _Warnings(logging.WARNING)
    logger = logging.getLogger("tunekit")
    logger.addHandler(warnings)
    try:
        code = cli.main(args=argv, prog_name="tunekit", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except TunekitError as error:
        say(str(error))
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

    The cache is the file that TUNEKIT_CACHE names (a path or an SQLAlchemy URL), else tunekit.db in
    your user cache folder. `tunekit.matmul` reads it and never times anything itself.
    """


@cli.command()
@click.option("--shapes", "shapes_file", metavar="FILE", help="YAML file with the problems.")
@click.option(
    "--shape",
    "shape_texts",
    multiple=True,
    metavar="M,N,K[,DTYPE[,LAYOUT]]",
    help="One problem; may be given again. DTYPE is bfloat16 and LAYOUT nt unless given.",
)
@cache_option
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cuda|cuda:N|replay|replay:FILE",
    help="Where to measure. `auto` is the GPU, or without one a replay of the shipped recording.",
)
@click.option("--sampler", type=click.Choice(SAMPLERS), default=SAMPLERS[0], show_default=True)
@click.option(
    "--trials", type=click.IntRange(min=1), help="Configs to try a key, on average [default: 80]."
)
@click.option("--seconds", type=float, callback=positive, help="Stop the run after this long.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--retune", is_flag=True, help="Tune again what is tuned, and let it replace.")
@click.option(
    "--stale",
    is_flag=True,
    help="Search nothing: after an upgrade, verify the best few stored configs again.",
)
@click.option(
    "--optuna-storage",
    metavar="URL",
    help="Keep each key's Optuna study there too: sqlite:///FILE, postgresql://… or journal:FILE.",
)
@click.option("--record", metavar="FILE", help="Write what was measured as a recording to replay.")
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
    was made. --stale tries the best row and the five fastest trials of each stale key again,
    against the vendor, and writes a row for what is installed now: of every key of this GPU in the
    cache, or of the shapes given. Rows that are current are left alone.
    """
    stale = settings["stale"]
    if shapes_file is not None and shape_texts:
        raise click.UsageError("give either --shapes FILE or --shape M,N,K, not both")
    if not stale and shapes_file is None and not shape_texts:
        raise click.UsageError("give either --shapes FILE or --shape M,N,K")
    if stale and settings["retune"]:
        raise click.UsageError(
            "--stale and --retune exclude each other: one verifies, one searches"
        )
    if stale and any(settings[n] is not None for n in ("record", "trials", "optuna_storage")):
        raise click.UsageError(
            "--stale searches nothing: it takes no --record, --trials or --optuna-storage"
        )
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    from tunekit.cli_tune import TuneRequest, run_tune

    return run_tune(
        TuneRequest(
            shapes_file, shape_texts, as_json=as_json, quiet=quiet, verbose=verbose, **settings
        )
    )


@cli.command()
@cache_option
@gpu_option
@json_option
def show(cache: str | None, gpu: str | None, as_json: bool) -> None:
    """Show the best row of each key, against the vendor.

    \b
    tunekit show
    tunekit show --json | jq '.keys[] | select(.choice == "vendor") | [.m, .n, .k]'

    The ratio is the vendor's time over Triton's: above 1 the Triton kernel is the faster. The grade
    says whether a row was made by the kernels and the compiler installed here (exact), by another
    compiler (other-compiler) or by kernels that have changed since (other-source: not served).

    trials/space: how many of the key's legal configs were tried; failed: how many of them did not
    work. "off best" is how much slower the fastest of them is expected to be than the fastest there
    is and, in brackets, the most it is in nine of ten cases.
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
        answer(table(rows, width=answer_width()))


@cli.command("export-cache")
@click.option("-o", "--output", metavar="FILE", help="Write here instead of to stdout.")
@cache_option
@gpu_option
@click.option("--all-trials", is_flag=True, help="Every trial too, not only the best of each key.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="json",
    show_default=True,
    help="One JSON document, or a cache file with these rows alone.",
)
@click.option(
    "--check",
    "shapes_file",
    metavar="SHAPES",
    help="Export nothing: list the problems of a shapes file that no row serves on this GPU (or "
    "that of --gpu), and exit 1 if there are any.",
)
@json_option
def export_cache(**options: Any) -> int:
    """Write the cache as one file, for another machine.

    \b
    tunekit export-cache -o tuned.json
    tunekit export-cache --gpu nvidia-h200-sm90-132 --all-trials -o all.json
    tunekit export-cache --format sqlite -o tuned.db
    tunekit export-cache --check shapes.yaml --gpu nvidia-h200-sm90-132

    Rows are sorted and carry where they come from and a checksum; no time of export is written, so
    the same rows give the same bytes. docs/exchange.md describes the JSON.
    """
    from tunekit.cli_export import ExportRequest, run_export

    return run_export(ExportRequest(**options))


@cli.command("import-cache")
@click.argument("file")
@cache_option
@click.option(
    "--on-conflict",
    type=click.Choice(POLICIES),
    default="keep",
    show_default=True,
    help="Where the cache has a row for a key already: keep it, or take the faster, the newer, "
    "the file's whatever it says (replace), or stop (fail).",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen; write nothing.")
@click.option(
    "--shape",
    metavar="M,N,K[,DTYPE[,LAYOUT]]",
    help="The product that a file of Triton's autotuner timed. DTYPE is the file's, LAYOUT nt.",
)
@click.option("--gpu", metavar="SLUG", help="The GPU that timed it, if not the one here.")
def import_cache(**options: Any) -> int:
    """Load rows that `export-cache` wrote, as JSON or SQLite, or that Triton's autotuner did.

    \b
    tunekit import-cache tuned.json --dry-run
    tunekit import-cache tuned.json --on-conflict faster
    tunekit import-cache tuned.db
    tunekit import-cache matmul_kernel.autotune.json --shape 512,1024,256,float16,nn

    Every row is checked. One that cannot be used here is refused by its number, with the reason,
    and the rest is loaded; a file that is damaged is not loaded at all. What Triton's autotuner
    timed (TRITON_CACHE_AUTOTUNING) is taken as trials: nothing is served from it.
    """
    from tunekit.cli_import import ImportRequest, run_import

    return run_import(ImportRequest(**options))


for command in READING:
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
