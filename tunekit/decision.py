"""What serves a problem: stated once, for the run time and for those who ask about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunekit.key import Problem
from tunekit.lookup import BORROWED, Answer, PassedOver, RowTable
from tunekit.trial import Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """What serves a problem: a row's Triton kernel, or the vendor's call."""

    answer: Answer | None
    """The row that decided, or None where there is none."""
    triton: bool
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def is_miss(self) -> bool:
        """Whether the problem itself has no row that serves it here."""
        return self.answer is None or self.answer.grade in BORROWED


def decide(
    table: RowTable,
    problem: Problem,
    *,
    backend: str = "auto",
    own_only: bool = False,
    refuses: Callable[[Answer], str | None] = lambda answer: None,
) -> Decision:
    """Say what serves a problem, by the rows alone: no tensor is needed, and nothing is launched.

    `backend`: with `auto` the vendor is called where the row says that it was the faster, with
    `triton` the row's config runs all the same. `own_only` leaves out what was tuned for another
    problem or GPU. `refuses` is asked before a row is taken; it may say why it cannot be.
    """
    passed: list[PassedOver] = []
    for answer in table.answers(problem, passed):
        if own_only and answer.grade in BORROWED:
            passed.append(PassedOver(answer.best, f"{answer.grade.value}: not this problem's own"))
            continue
        if backend == "auto" and answer.best.choice is Choice.VENDOR:
            return Decision(answer, False, tuple(passed))
        reason = refuses(answer)
        if reason is None:
            return Decision(answer, True, tuple(passed))
        passed.append(PassedOver(answer.best, reason))
    return Decision(None, False, tuple(passed))
