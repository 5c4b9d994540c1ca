"""The search space: which configs exist for a problem on a device, and why the others do not.

Legality is stated once. A variant gives its choices and its rules as a `VariantSpace`; `violation`
applies them and names the rule that fails; `enumerate_space` applies the same rules, and those of
what is worth a trial, to every combination of the choices. Whatever stores, imports, serves or
compiles a config asks `violation`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunekit.config import Config
from tunekit.device import DeviceInfo
from tunekit.key import Problem

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FIELDS = ("block_m", "block_n", "block_k", "group_size", "split_k", "num_warps", "num_stages")
"""The fields every variant has, in the order they are enumerated and shown."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Why a config is not legal: the rule's name and the numbers that broke it."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


RuleCheck = Callable[[Config, Problem, DeviceInfo], "str | None"]
"""Answers None for a config that passes, else the reason, with numbers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A named condition every legal config meets.

    `fields` are the only fields of a config that `check` reads, so that an enumeration can ask once
    for all configs that agree on them. Empty means any: the rule is asked for every config.
    """

    name: str
    check: RuleCheck
    fields: tuple[str, ...] = ()

    def on(self, left: Callable[[Problem], Problem]) -> Rule:
        """Return the rule asked about what is left of a problem, as where operands are copied."""

        def check(config: Config, problem: Problem, device: DeviceInfo) -> str | None:
            return self.check(config, left(problem), device)

        return Rule(self.name, check, self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class VariantSpace:
    """A variant's part of the space.

    `choices` gives the values of every name in `FIELDS` and of each of the variant's own switches.
    `rules` say what can run: a config that breaks one is not legal. `worth` says what is worth a
    trial: a config that breaks one is left out of the search, but may serve where a neighbouring
    problem's row is borrowed. Both are checked in order and the first that fails is the one
    reported, so the cheap and telling ones come first.
    """

    variant: str
    choices: Mapping[str, tuple[int, ...]]
    rules: tuple[Rule, ...]
    worth: tuple[Rule, ...] = ()

    def switches(self) -> tuple[str, ...]:
        """Return the names of the variant's own switches, in the order configs hold them."""
        return _switches_of(tuple(self.choices))

    def names(self) -> tuple[str, ...]:
        """Return what is chosen: the fields, then the switches."""
        return (*FIELDS, *self.switches())

    def config(self, values: Sequence[int]) -> Config:
        """Return the config with these values of `names`."""
        m, n, k, group, parts, warps, stages, *rest = values
        own = tuple(zip(self.switches(), rest, strict=True))
        return Config(self.variant, m, n, k, group, parts, warps, stages, own)

    def candidates(self) -> Iterator[Config]:
        """Yield every combination of the choices, legal or not."""
        return map(self.config, itertools.product(*(self.choices[name] for name in self.names())))

    def violation(self, config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
        """Return the first rule the config breaks, or None if it is legal."""
        for name in FIELDS:
            value = getattr(config, name)
            if value not in self.choices[name]:
                return Violation(f"{name}-choice", f"{name}={value} is not one of {self.variant}'s")
        # All of the variant's switches, each once and in order: one left out would run as a default
        # that may be none of its choices, and two spellings of one config would be two rows.
        own = self.switches()
        if tuple(name for name, _ in config.switches) != own:
            given = ", ".join(name for name, _ in config.switches) or "none"
            wanted = ", ".join(own) or "none"
            return Violation("switches-choice", f"{self.variant} has {wanted}, not {given}")
        for name, value in config.switches:
            if value not in self.choices[name]:
                return Violation(f"{name}-choice", f"{name}={value} is not one of {self.variant}'s")
        return _first_broken(self.rules, config, problem, device)

    def doubt(self, config: Config, problem: Problem, device: DeviceInfo) -> Violation | None:
        """Return why a legal config is not worth a trial, or None if it is."""
        return _first_broken(self.worth, config, problem, device)


@functools.cache
def _switches_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if name not in FIELDS))


def _first_broken(
    rules: Sequence[Rule], config: Config, problem: Problem, device: DeviceInfo
) -> Violation | None:
    for rule in rules:
        reason = rule.check(config, problem, device)
        if reason is not None:
            return Violation(rule.name, reason)
    return None


Legality = Callable[[Config, Problem, DeviceInfo], "Violation | None"]
"""The question "is this config legal here, and if not, by which rule"."""


@dataclass(frozen=True)
class Space:
    """Every legal config worth a trial for a problem on a device, in a fixed order."""

    problem: Problem
    device: DeviceInfo
    configs: tuple[Config, ...]
    pruned: Mapping[str, int] = field(default_factory=dict)
    """How many combinations each rule removed; with `configs` they add up to all of them."""

    def __len__(self) -> int:
        return len(self.configs)

    def digest(self) -> str:
        """Name the exact set of configs: it changes when, and only when, one comes or goes."""
        text = "\n".join(sorted(map(str, self.configs)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_violation(
    variants: Sequence[VariantSpace], config: Config, problem: Problem, device: DeviceInfo
) -> Violation | None:
    """Answer whether a config is legal, given all variants there are."""
    for variant in variants:
        if variant.variant == config.variant:
            return variant.violation(config, problem, device)
    return Violation("variant", f"there is no kernel variant {config.variant!r}")


def enumerate_space(
    variants: Sequence[VariantSpace], problem: Problem, device: DeviceInfo
) -> Space:
    """Enumerate every legal config, counting what each rule removed."""
    import numpy as np

    legal: list[Config] = []
    pruned: Counter[str] = Counter()
    for variant in variants:
        combinations = _combinations(variant)
        left = np.arange(len(combinations))
        for rule in (*variant.rules, *variant.worth):
            broken = _breaking(rule, combinations, left, problem, device)
            if broken.any():
                pruned[rule.name] += int(broken.sum())
                left = left[~broken]
        legal.extend(combinations.config(place) for place in left.tolist())
    return Space(problem, device, tuple(legal), dict(pruned))


def _breaking(
    rule: Rule,
    combinations: _Combinations,
    places: npt.NDArray[np.intp],
    problem: Problem,
    device: DeviceInfo,
) -> npt.NDArray[np.bool_]:
    """Say which of the combinations at these places break a rule."""
    import numpy as np

    if not rule.fields:
        configs = map(combinations.config, places.tolist())
        broken = (rule.check(config, problem, device) is not None for config in configs)
        return np.fromiter(broken, np.bool_, len(places))
    group, examples = combinations.groups(rule.fields)
    groups = group[places]
    answers = np.zeros(len(examples), np.bool_)
    for one in np.unique(groups).tolist():
        config = combinations.config(examples[one])
        answers[one] = rule.check(config, problem, device) is not None
    return answers[groups]


class _Combinations:
    """A variant's combinations by their place in the order of `candidates`.

    There are a hundred thousand, of which few are legal: only those that are asked for are made.
    """

    def __init__(self, variant: VariantSpace) -> None:
        self._variant = variant
        self._names = variant.names()
        self._choices = [variant.choices[name] for name in self._names]
        self._sizes = [len(values) for values in self._choices]
        self._made: dict[int, Config] = {}
        self._grouped: dict[tuple[str, ...], tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = {}

    def __len__(self) -> int:
        return math.prod(self._sizes)

    def config(self, place: int) -> Config:
        """Return the combination at a place."""
        found = self._made.get(place)
        if found is None:
            values, rest = [], place
            for choices in reversed(self._choices):
                rest, which = divmod(rest, len(choices))
                values.append(choices[which])
            found = self._made[place] = self._variant.config(values[::-1])
        return found

    def groups(self, fields: tuple[str, ...]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Number the combinations that agree on some fields alike; give a place of each number.

        A rule that reads those fields only is then asked once a number, not once a combination.
        """
        if fields not in self._grouped:
            self._grouped[fields] = self._grouping(fields)
        return self._grouped[fields]

    def _grouping(
        self, fields: tuple[str, ...]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        import numpy as np

        read = {*fields, *(self._variant.switches() if "switches" in fields else ())}
        sizes = [n if name in read else 1 for n, name in zip(self._sizes, self._names, strict=True)]
        places = np.arange(math.prod(sizes)).reshape(sizes)
        group = np.broadcast_to(places, self._sizes).reshape(-1)
        firsts = np.arange(len(self)).reshape(self._sizes)
        return group, firsts[tuple(slice(n) for n in sizes)].reshape(-1)


@functools.lru_cache(maxsize=64)
def _combinations(variant: VariantSpace) -> _Combinations:
    return _Combinations(variant)
