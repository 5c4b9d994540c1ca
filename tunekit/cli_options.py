"""Options that several commands have, and what a mistyped name is answered with."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Commands(click.Group):
    """A group that answers an unknown command with the one that was meant, in every click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which the commands were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or name those that are spelled like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.commands, n=3)
            if not near or args[0] in self.commands:
                raise
            names = " or ".join(map(repr, near))
            text = f"there is no command {args[0]!r}: did you mean {names}?"
            raise click.UsageError(text, ctx) from error


def usage_line(error: click.UsageError) -> str:
    """Say in one line what is wrong with how a command was called, and where help is."""
    context = error.ctx
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        near = list(error.possibilities or ())[:2]
        meant = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
        text = f"there is no option {error.option_name!r}{meant}"
    elif context is not None and text.startswith("Got unexpected extra argument"):
        names = {option.name for option in context.command.params}
        if "shapes_file" in names:
            one = " or --shape M,N,K" if "shape_texts" in names else ""
            text += f": problems are named with --shapes FILE{one}"
    for term, plainly in (
        ("a valid integer range", "a whole number"),
        ("a valid float", "a number"),
    ):
        text = text.replace(term, plainly)
    path = "tunekit" if context is None else context.command_path
    stop = "" if text.endswith("?") else ";"
    return f"{text[:1].lower()}{text[1:]}{stop} see `{path} --help`"


class FileName(click.types.StringParamType):
    """Any text, which a shell completes as a path. What is wrong with a file, its reader says."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Leave it to the shell."""
        return [CompletionItem(incomplete, type="file")]


FILE = FileName()


def cache_option(command: _Command) -> _Command:
    """Add `--cache`."""
    text = "Path or SQLAlchemy URL of the cache, instead of TUNEKIT_CACHE or the default."
    return click.option("--cache", type=FILE, metavar="URL", help=text)(command)


def gpu_option(command: _Command) -> _Command:
    """Add `--gpu`."""
    text = "Only rows of this GPU, named as `tunekit show` names it."
    return click.option("--gpu", metavar="SLUG", help=text)(command)


def json_option(command: _Command) -> _Command:
    """Add `--json`."""
    text = "Print one JSON document on stdout and nothing else there."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def positive(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse a number that is not above 0."""
    if value is not None and not value > 0:  # not `value <= 0`: nan is refused too
        raise click.BadParameter(f"{value} is not above 0")
    return value


def worker_count(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what is neither a number of workers nor `all`."""
    if value is None or value == "all":
        return value
    if not value.isdecimal() or not value.strip("0"):
        raise click.BadParameter(f"{value!r} is not a whole number above 0")
    if len(value) > 6 or int(value) > 100_000:
        raise click.BadParameter(f"{value} is more than the 100000 that a run can have")
    return value
