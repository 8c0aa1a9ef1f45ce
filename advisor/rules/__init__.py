"""Rules: what to look at, from the literature; one file a rule, found by being here.

A rule never says how much: it reports what it sees in a simulated case, points at moves to try, or at moves that are
tempting and in vain. The simulator says how much, and whether.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from msgspec import Struct, field

from roofline.advisor.case import Case


class Finding(Struct, frozen=True):
    """What holds a scenario back: one sentence, and the numbers it rests on with their units in the names' text.

    `share` is the part of the whole time, or of memory where `of` says so, that it concerns: findings are ordered by
    it.
    """

    text: str
    share: float
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    of: str = "time"


class Hint(Struct, frozen=True):
    """Moves to try, by name or by slot, and why here."""

    moves: tuple[str, ...]
    because: str


class Vain(Struct, frozen=True):
    """Moves that are tempting and will not help here, by name or by slot, and why. The simulator has the last word."""

    moves: tuple[str, ...]
    because: str


class Caution(Struct, frozen=True):
    """What to mind, of certain moves (by name or slot) or of the case as a whole."""

    text: str
    moves: tuple[str, ...] = ()


Said = Finding | Hint | Vain | Caution


class Rule(Struct, frozen=True):
    """A rule: a statement in a sentence, where the literature has it, and what looks at a case.

    `sources` are the numbers of the rules in the research notes, such as "yuan R4", "zhou 2" and "miao D11", and the
    sections of the papers. `look` says what the rule has to say of a case: nothing where it does not apply.
    """

    name: str
    statement: str
    sources: tuple[str, ...]
    look: Callable[[Case], Iterable[Said]]


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """Every rule by name: the `RULE` of each module of this package."""
    found: list[Rule] = [import_module(f"{__name__}.{entry.name}").RULE for entry in iter_modules(__path__)]
    return MappingProxyType({rule.name: rule for rule in sorted(found, key=lambda rule: rule.name)})
