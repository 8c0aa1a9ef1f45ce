"""Rules of the literature: each inspects a simulated case and reports findings; the simulator quantifies every move.

A rule is a record of `rules.yaml` (its statement, its sources, its findings in words) and a function under `@rule` in a
module of this package, which says what of these a `Case` has: nothing where the rule does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from importlib import import_module
from pkgutil import iter_modules
from string import Formatter
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from roofline.advisor.case import Case
from roofline.core.documents import bundled
from roofline.core.units import count_text, seconds, si


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
Told = Callable[..., Iterator[Finding]]
"""`Rule.told` of a case."""

Look = Callable[[Case, Told], Iterator[Finding]]


class _Words(Formatter):
    """Texts with units: {x:s} is a time, {x:n} a count, {x:B}, {x:B/s}, {x:FLOP/s} and {x:si} have SI prefixes."""

    def format_field(self, value: Any, format_spec: str) -> str:
        match format_spec:
            case "s":
                return seconds(float(value))
            case "n":
                return count_text(value)
            case "B" | "B/s" | "FLOP/s" | "si":
                return si(float(value), format_spec.removeprefix("si"))
        return str(super().format_field(value, format_spec))


WORDS = _Words()


class Texts(Struct, frozen=True, forbid_unknown_fields=True, rename={"no_benefit": "no benefit"}):
    """Findings in words that hold together, each a text with fields of facts, or "" for none."""

    bottleneck: str = ""
    hint: str = ""
    caution: str = ""
    no_benefit: str = ""
    moves: tuple[str, ...] = ()
    evidence: Mapping[str, str] = {}
    of: str = "time"


class Rule(Struct, frozen=True):
    """A rule: its statement in a sentence, its sources, its findings in words, and the function that applies it.

    `sources` are the numbers of the rules in the surveys, such as "yuan R4", "zhou 2" and "miao D11".
    """

    name: str
    statement: str
    sources: tuple[str, ...]
    findings: Mapping[str, Texts]
    function: Look

    def look(self, case: Case) -> Iterator[Finding]:
        """The findings in a case."""
        return self.function(case, partial(self.told, case))

    def told(
        self,
        case: Case,
        key: str,
        weight: float = 0.0,
        moves: tuple[str, ...] = (),
        evidence: Mapping[str, str] = MappingProxyType({}),
        **facts: Any,
    ) -> Iterator[Finding]:
        """The findings called `key` with these facts; a bottleneck has the share `weight`.

        `moves` and `evidence` are those that its record does not have.
        """
        texts, scenario = self.findings[key], case.scenario
        known = {"case": case, "scenario": scenario, "memory": case.analysis.memory, "engine": scenario.profile}

        def written(text: str) -> str:
            return WORDS.format(text, **known, **facts)

        moves = moves or texts.moves
        if texts.bottleneck:
            parts = {name: written(text) for name, text in texts.evidence.items()}
            yield Bottleneck(written(texts.bottleneck), weight, {**parts, **evidence}, texts.of)
        if texts.hint:
            yield Hint(moves, written(texts.hint))
        if texts.caution:
            yield Caution(written(texts.caution), moves)
        if texts.no_benefit:
            yield NoBenefit(moves, written(texts.no_benefit))


_FUNCTIONS: dict[str, Look] = {}


def rule(look: Look) -> Look:
    """A decorator that registers a function as that of the rule of its name, with dashes."""
    _FUNCTIONS[look.__name__.replace("_", "-")] = look
    return look


def rule_of(name: str, record: Mapping[str, Any], look: Look) -> Rule:
    """The rule of a record and its function."""
    findings = {key: texts for key, texts in record.items() if key not in ("statement", "sources")}
    sources = tuple(record["sources"])
    return Rule(name, record["statement"], sources, msgspec.convert(findings, dict[str, Texts]), look)


@lru_cache(maxsize=1)
def rules() -> Mapping[str, Rule]:
    """All rules by name: the records, with the functions in every module of this package."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    records = bundled("advisor/rules/rules.yaml")
    return MappingProxyType({name: rule_of(name, records[name], look) for name, look in sorted(_FUNCTIONS.items())})
