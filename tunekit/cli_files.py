"""The commands that write and read files: exports, imports, shapes. Each loads what it needs."""

from __future__ import annotations

from typing import Any

import click

from tunekit.cli_options import FILE, cache_option, gpu_option, json_option

POLICIES = ("faster", "newer", "keep", "replace", "fail")
FORMATS = ("json", "sqlite")
"""What the store offers, repeated here so that `--help` need not load it."""


@click.command("export-cache", short_help="Write the cache as one file, for another machine.")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write here instead of to stdout.")
@cache_option
@gpu_option
@click.option(
    "--all-trials", is_flag=True, help="Every trial too, not only the best of each problem."
)
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
    type=FILE,
    metavar="SHAPES",
    help="Export nothing: list the problems of a shapes file that no row serves on this GPU (or "
    "that of --gpu, or the only one of the cache), and exit 1 if there are any.",
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

    if options["output"] == "-":  # as other commands have it
        options["output"] = None
    return run_export(ExportRequest(**options))


@click.command("import-cache", short_help="Load a file that `export-cache` wrote.")
@click.argument("file", type=FILE)
@cache_option
@click.option(
    "--on-conflict",
    type=click.Choice(POLICIES),
    default="keep",
    show_default=True,
    help="Where the cache has a row for a problem already: keep it, or take the faster, the newer, "
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

    if options["file"] == "-":  # as other commands have it
        options["file"] = "/dev/stdin"
    return run_import(ImportRequest(**options))


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a program and write which products it makes.",
)
@click.option(
    "-o",
    "--output",
    default="shapes.yaml",
    show_default=True,
    type=FILE,
    metavar="FILE",
    help="The shapes file; one that is there is added to.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: str, command: tuple[str, ...]) -> int:
    """Run a Python program and write the shapes of its matrix products, with counts.

    \b
    tunekit record -o shapes.yaml -- python generate.py --batch 16
    tunekit record -- python -m my.training
    torchrun --nproc-per-node 8 -m tunekit record -- python train.py

    Nothing is timed and no GPU is needed: a program on the CPU, or one whose tensors are fake, has
    the same shapes. The exit code is the program's. What it did is also written if it fails or is
    interrupted. docs/run-time.md says what is not seen.
    """
    from tunekit.cli_record import run_record

    return run_record(command, output=output)


FILES = (export_cache, import_cache, record)
"""In the order in which `tunekit --help` is read."""
