"""Rules of the literature: each inspects a simulated case and reports findings; the simulator quantifies every move.

A rule is a function under `@rule(...)` in one of the modules of this package, from a `Case` to its findings: nothing
where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from msgspec import Struct, field

from roofline.advisor.case import Case


class Bottleneck(Struct, frozen=True):
    """What limits a scenario: a sentence, and its evidence as text with units.

    `share` is the fraction of total time (or of memory, as `of` states) concerned: bottlenecks are sorted by it.
    """

    text: str
    share: float
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    of: str = "time"


class Hint(Struct, frozen=True):
    """Moves to try, by name or slot, and why."""

    moves: tuple[str, ...]
    text: str


class NoBenefit(Struct, frozen=True):
    """Tempting moves, by name or slot, that should not help, and why. A simulated gain overrules it."""

    moves: tuple[str, ...]
    text: str


class Caution(Struct, frozen=True):
    """A caveat about moves (by name or slot), or without moves about the case."""

    text: str
    moves: tuple[str, ...] = ()


Finding = Bottleneck | Hint | NoBenefit | Caution
Look = Callable[[Case], Iterator[Finding]]


class Rule(Struct, frozen=True):
    """A rule: its statement in a sentence, its sources and the function that applies it.

    `sources` are the numbers of the rules in the surveys, such as "yuan R4", "zhou 2" and "miao D11".
    """

    name: str
    statement: str
    sources: tuple[str, ...]
    look: Look


_RULES: dict[str, Rule] = {}


def rule(statement: str, sources: str) -> Callable[[Look], Look]:
    """A decorator that registers a function as the rule of its name; `sources` are separated by commas."""

    def register(look: Look) -> Look:
        name = look.__name__.replace("_", "-")
        _RULES[name] = Rule(name, statement, tuple(sources.split(", ")), look)
        return look

    return register


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """All rules by name, from every module of this package."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return MappingProxyType(dict(sorted(_RULES.items())))
