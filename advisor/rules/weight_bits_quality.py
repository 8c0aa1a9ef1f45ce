"""What quantised weights may cost in quality, by their bits."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said
from roofline.advisor.search.goal import Price
from roofline.scenario.scenario import Scenario

TINY, SMALL, BALANCED = 2.5, 3.5, 5.0
"""Bits of a weight up to which two bits, fewer than four, and four are meant, scales included."""

LONG = 8192
"""Tokens of a context that is called long."""


def look(case: Case) -> Iterator[Said]:
    """Applies to moves that quantise weights; nothing is said of the others."""
    for name, after in case.formats_after.items():
        move, bits = case.moves[name], after.weights.bits
        if move.slot != "weight format" or case.formats is None or bits >= case.formats.weights.bits:
            continue
        if bits <= TINY:
            yield Caution(f"{bits:.3g} bits a weight hold quality only with methods made for so few", (name,))
        elif bits <= SMALL:
            yield Caution(
                f"{bits:.3g} bits a weight are fewer than the four that usually balance size and quality", (name,)
            )
        elif bits <= BALANCED:
            yield Hint((name,), f"{bits:.3g} bits a weight are near four, the usual balance of size and quality")
        if move.price in (Price.CALIBRATION, Price.LOSSY):
            yield Hint((name,), "no training: quantising a finished model takes minutes to hours")
        if bits <= BALANCED:
            yield Caution("abilities such as reasoning in many steps may suffer: check them on your own tasks", (name,))
            if (longest := _context(case.scenario)) >= LONG:
                yield Caution(f"contexts of {longest} tokens are where quantised models may lose most quality", (name,))


def _context(scenario: Scenario) -> int:
    return int(scenario.first_cached + scenario.generate)


RULE = Rule(
    "weight-bits-quality",
    "Four bits a weight are the usual balance of size and quality; two and fewer need special methods, and long"
    " contexts and emergent abilities suffer first.",
    ("yuan R9", "zhou 7", "zhou 8"),
    look,
)
