"""The commands that look at a cache and change nothing. Each loads what it needs when it runs."""

from __future__ import annotations

from typing import Any

import click

from tunekit.cli_options import FILE, cache_option, gpu_option, json_option, positive

COMPARISONS = ("torch", "inductor", "triton-list")
"""What the benchmark offers, repeated here so that `--help` need not load it."""

SHELLS = ("bash", "zsh", "fish")


def _names(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Split names at commas, and refuse those that are not among the comparisons."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in COMPARISONS]
    if unknown or not names:
        raise click.BadParameter(f"{text!r}: use one or more of {', '.join(COMPARISONS)}")
    return names


@click.command(short_help="Say what would run for one problem, and why.")
@click.argument("problem", nargs=-1, required=True, metavar="M N K")
@click.option("--dtype", help="Of the operands [default: bfloat16].")
@click.option("--layout", help="As in `tunekit tune --help` [default: nt].")
@cache_option
@gpu_option
@json_option
def explain(
    problem: tuple[str, ...],
    dtype: str | None,
    layout: str | None,
    cache: str | None,
    gpu: str | None,
    as_json: bool,
) -> int:
    """Explain what would run for C (M, N) = A (M, K) @ B (K, N), and why.

    \b
    tunekit explain 512 4096 4096
    tunekit explain 16 28672 4096 --dtype float16 --layout nn
    tunekit explain 512x4096x4096 bfloat16 nt
    tunekit explain 512 4096 4096 --gpu nvidia-h200-sm90-132 --json

    At which grade, its time with the 95 % interval, the vendor's, the next best config and by how
    much it lost, what was tried, what failed and why, and the command that would improve it.
    Without a GPU it is that of --gpu, or the only one that the cache has rows of.
    """
    from tunekit.cli_explain import run_explain

    return run_explain(problem, dtype, layout, cache=cache, gpu=gpu, as_json=as_json)


@click.command(short_help="Compare with torch, Inductor and a fixed list of configs.")
@click.option(
    "--shapes", "shapes_file", type=FILE, metavar="FILE", required=True, help="As for `tune`."
)
@click.option(
    "--against",
    default=COMPARISONS[0],
    show_default=True,
    callback=_names,
    metavar="NAME,...",
    help=f"What to compare with: {', '.join(COMPARISONS)}.",
)
@cache_option
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cuda|cuda:N|replay|replay:FILE",
    help="Where to measure. `replay` gives the recorded times, which are torch's and ours.",
)
@click.option(
    "--fail-below",
    type=float,
    callback=positive,
    metavar="RATIO",
    help="Exit 1 if the geometric mean against any of them is below this.",
)
@json_option
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def bench(**options: Any) -> int:
    """Compare what tunekit runs with torch, Inductor and a fixed list of 15 Triton configs.

    \b
    tunekit bench --shapes shapes.yaml
    tunekit bench --shapes shapes.yaml --against torch,inductor,triton-list
    tunekit bench --shapes shapes.yaml --fail-below 1.0 --json > bench.json

    All of a problem's entrants run in the same interleaved rounds, with a cold L2 cache and random
    operands, and every Triton config is verified first. Times are of the device, in microseconds;
    a ratio is another's time over tunekit's, with both at the ends of their 95 % intervals in
    brackets. The roofline is what a measured copy and a measured large product reach.
    """
    from tunekit.cli_bench import BenchRequest, run_bench

    return run_bench(BenchRequest(**options))


@click.command(short_help="Check the installation, the GPUs and the cache.")
@cache_option
@json_option
def doctor(cache: str | None, as_json: bool) -> int:
    """Check the installation, the GPUs and the cache, and say what mends what is wrong.

    \b
    tunekit doctor
    tunekit doctor --cache /shared/tunekit.db
    tunekit doctor --json | jq -r '.checks[] | select(.level == "problem") | .fix'

    Nothing is changed. Exit code 0: healthy, GPU or not. 1: there is a problem, and a line that
    begins with -> says what mends it. A note is no problem.
    """
    from tunekit.cli_doctor import run_doctor

    return run_doctor(cache, as_json=as_json)


@click.command(short_help="Write everything the cache holds as a page with plots.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="The page; one that is there is replaced.",
)
@cache_option
@gpu_option
def report(output: str, cache: str | None, gpu: str | None) -> int:
    """Write everything the cache holds as one HTML page, to be opened in a browser.

    \b
    tunekit report
    tunekit report -o h200.html --gpu nvidia-h200-sm90-132

    Roofline, speed-up over the vendor with intervals, how the search got there, which parameters
    matter, what failed and why, and every number as a table. The page loads nothing from anywhere.
    What draws it is an extra:

    \b
    pip install 'tunekit-triton[report]'
    """
    from tunekit.cli_report import run_report

    return run_report(output, cache, gpu)


@click.command(short_help="Print what makes your shell complete commands.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    tunekit completion bash >> ~/.bashrc
    tunekit completion zsh >> ~/.zshrc
    tunekit completion fish > ~/.config/fish/completions/tunekit.fish
    """
    from click.shell_completion import get_completion_class

    from tunekit.output import answer

    kind = get_completion_class(shell)
    assert kind is not None
    main = click.get_current_context().find_root().command
    answer(kind(main, {}, "tunekit", "_TUNEKIT_COMPLETE").source().strip())


READING = (explain, bench, report, doctor)
"""In the order in which `tunekit --help` is read."""
