"""Methods combined: better together at times, and at times in each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.plan import Interaction

LOOKED_AT = 3
"""Moves whose pairs are simulated: the best of each slot."""


def look(case: Case) -> Iterator[Said]:
    """Applies where two of the best moves of different slots, simulated together, do not give their product."""
    chosen = [move for move in case.best if case.gain(move.name) > HELPS][:LOOKED_AT]
    for one, other in combinations(chosen, 2):
        trial = case.trials.attempt([one, other])
        if trial is None:
            continue
        both = float(case.goal.gain(case.base.value, trial.value))
        pair = Interaction((one.name, other.name), case.gain(one.name), case.gain(other.name), both)
        product = pair.one * pair.other
        alone = f"{pair.one:.3g} and {pair.other:.3g} times better alone"
        told = f"{alone}, {pair.both:.3g} together; their product is {product:.3g}"
        match pair.kind:
            case "counteract":
                yield Caution(f"{one.name} and {other.name} counteract: {told}", pair.names)
            case "overlap":
                yield Caution(f"{one.name} and {other.name} overlap: {told}", pair.names)
            case "reinforce" | "need each other":
                yield Hint(pair.names, f"{one.name} and {other.name} belong together: {told}")


RULE = Rule(
    "combining",
    "Combine methods, and simulate the combination: optimisations of memory may counteract one another.",
    ("zhou 31", "miao D9"),
    look,
)
