"""How products are to be served: what the process says, a block of code, and a single call.

A call's own `backend` and `on_miss` count before those of the innermost `with policy(...)` around
it, which holds for the thread or task it is in, and that before `set_policy`, which holds for the
process. What was prepared under a policy is remembered with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from tunekit.config import Config
from tunekit.errors import ProblemError

logger = logging.getLogger(__name__)

Backend = Literal["auto", "triton", "vendor"]
OnMiss = Literal["warn", "fallback", "error"]
Kind = tuple[object, ...]

BACKENDS = ("auto", "triton", "vendor")
REACTIONS = ("warn", "fallback", "error")


@dataclass(frozen=True, slots=True)
class Policy:
    """How products are served.

    `backend`: `auto` runs what was measured to be the fastest; `triton` runs a Triton kernel
    whatever the vendor's time, and says why if it cannot; `vendor` runs torch. `on_miss`: for a
    problem without a tuned row, `warn` once and go on, go on silently (`fallback`), or raise
    (`error`). `deterministic`: what serves a problem depends on that problem's own row alone, never
    on a neighbour's, and a row or a cache that cannot be used is an error. `config`: run this
    config for every product, and neither read nor write the cache.
    """

    backend: Backend = "auto"
    on_miss: OnMiss = "warn"
    deterministic: bool = False
    config: Config | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ProblemError(f"unknown backend {self.backend!r}: use auto, triton or vendor")
        if self.on_miss not in REACTIONS:
            raise ProblemError(f"unknown on_miss {self.on_miss!r}: use warn, fallback or error")
        if not isinstance(self.deterministic, bool):
            raise ProblemError(f"deterministic must be true or false, not {self.deterministic!r}")
        if self.config is not None and not isinstance(self.config, Config):
            raise ProblemError(f"config must be a tunekit.Config, not {self.config!r}")

    def overridden(self, backend: str | None, on_miss: str | None) -> Policy:
        """Return the policy of a call that says these for itself."""
        if backend is None and on_miss is None:
            return self
        own: dict[str, Any] = {"backend": backend, "on_miss": on_miss}
        return replace(self, **{name: value for name, value in own.items() if value is not None})


MOST_KINDS = 1 << 16
"""How many kinds of operands are remembered under a policy; then all are met anew."""


@dataclass(slots=True, eq=False)
class Scope:
    """A policy in force, with what was prepared under it: what to run for operands of a kind.

    Who prepares something takes the dictionary before he chooses and puts the result into that
    one: if `forget` came in between, it is another's by then, and the choice is lost with it.
    """

    policy: Policy
    prepared: dict[Kind, Callable[..., Any]] = field(default_factory=dict)


class Process:
    """What is in force in a process where no block says otherwise."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope) -> None:
        self.scope = scope


_scopes: dict[Policy, Scope] = {}
HERE: ContextVar[Scope | None] = ContextVar("tunekit_policy", default=None)
"""What is in force in this thread or task, if a block says so."""


def scope_of(policy: Policy) -> Scope:
    """Return the one scope of a policy."""
    return _scopes.setdefault(policy, Scope(policy))


PROCESS = Process(scope_of(Policy()))


def current() -> Scope:
    """Return what is in force where this is called."""
    return HERE.get() or PROCESS.scope


def forget() -> None:
    """Drop everything that was prepared, under whatever policy."""
    for scope in list(_scopes.values()):
        scope.prepared = {}


def remember(prepared: dict[Kind, Callable[..., Any]], kind: Kind, run: Callable[..., Any]) -> None:
    """Keep what was prepared for operands of a kind."""
    if len(prepared) >= MOST_KINDS:
        prepared.clear()
    prepared[kind] = run


def set_policy(**changes: Any) -> Policy:
    """Change the policy of the process, and return what it was.

    Takes the fields of `Policy`; those not named keep their value. It holds for every thread, where
    no `with policy(...)` says otherwise.

    Raises:
        ProblemError: a field or a value is none there is.
    """
    before = PROCESS.scope.policy
    PROCESS.scope = scope_of(_changed(before, changes))
    return before


@contextmanager
def policy(**changes: Any) -> Iterator[Policy]:
    """Serve products inside the block under a changed policy, in this thread or task alone.

    Takes the fields of `Policy`; those not named keep the value they have outside. The backward
    pass of a product follows the policy of its forward pass. What is compiled follows the policy
    around its call: the block belongs around it, not into it.

    Raises:
        ProblemError: a field or a value is none there is.
    """
    inside = scope_of(_changed(current().policy, changes))
    token = HERE.set(inside)
    try:
        yield inside.policy
    finally:
        _leave(token)


@contextmanager
def under(scope: Scope) -> Iterator[None]:
    """Serve products inside the block as another thread was told to."""
    token = HERE.set(scope)
    try:
        yield
    finally:
        _leave(token)


def _leave(token: Token[Scope | None]) -> None:
    """Take back what a block said."""
    try:
        HERE.reset(token)
    except ValueError:
        # The block was left in another task or thread than it was entered in, as those of an
        # unfinished generator are, or of a server's dependency. What it said never held here.
        logger.debug("a policy was left in another context than it was entered in")


def _changed(before: Policy, changes: dict[str, Any]) -> Policy:
    unknown = sorted(set(changes) - {one.name for one in fields(Policy)})
    if unknown:
        names = ", ".join(one.name for one in fields(Policy))
        raise ProblemError(f"a policy has no {unknown[0]!r}: use {names}")
    return replace(before, **changes)
