"""How a worker begins: its device is opened before all else that it needs is loaded.

What a GPU's runner starts takes seconds to load what it needs, and so does a worker: they do so at
the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunekit.errors import TunekitError
from tunekit.key import Problem

if TYPE_CHECKING:
    from tunekit.fleet.member import Link
    from tunekit.runner import Runner


@dataclass(frozen=True, slots=True)
class Post:
    """Where a worker works: what it opens, and the store that it shares with the others."""

    open: Callable[..., Runner]
    device: str
    cache: str
    seed: int = 0
    compilers: int | None = None
    """Compiler processes; as many as there are cores unless it is given."""
    problems: tuple[Problem, ...] = ()
    """Those whose spaces it says without being asked: it can while the leader still loads."""


def serve(link: Link, post: Post) -> None:
    """Be a worker until the leader says stop, or is gone."""
    try:
        runner = post.open(post.device, seed=post.seed, compilers=post.compilers)
    except TunekitError as error:
        from tunekit.fleet.messages import Refused

        link.send(Refused(error))
        return
    if post.problems:
        runner.prepare(post.problems)
    from tunekit.fleet.member import work

    work(link, runner, post.cache, post.problems)
