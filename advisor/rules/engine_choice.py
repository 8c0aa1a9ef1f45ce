"""Engines: none is best for everything, and many differ by less than is known about them."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import better


def look(case: Case) -> Iterator[Said]:
    """Applies where other engines are offered: whether any is surely better, and whether objectives disagree."""
    engines = case.offered(Kind.ENGINE)
    if not engines or case.goal.at == "bound":
        return
    gains = {move.name: better(case.base, trial) for move, trial in engines}
    unsure = tuple(name for name, gain in gains.items() if gain.low < 1 < gain.high)
    if unsure:
        low, high = (min(gains[name].low for name in unsure), max(gains[name].high for name in unsure))
        yield Caution(
            f"engines are within each other's uncertainty here, {low:.2g} to {high:.2g} times as good as now: measure"
            " them on your own requests",
            unsure,
        )
    for name, gain in gains.items():
        if gain.low > 1:
            yield Hint((name,), f"better over the whole interval of its gain, {gain.low:.3g} to {gain.high:.3g} times")
    if not case.generates:
        return
    trials = {"the present engine": case.base, **{move.name: trial for move, trial in engines}}
    first = min(trials, key=lambda name: float(trials[name].figure("ttft")))
    then = min(trials, key=lambda name: float(trials[name].figure("tpot")))
    if first != then:
        yield Caution(
            f"no engine is best for everything: the first token is soonest with {first}, further tokens with {then}",
            tuple(gains),
        )


RULE = Rule(
    "engine-choice",
    "No one engine is best for all: choose by the objective, and measure where predictions overlap.",
    ("zhou 30", "miao D23"),
    look,
)
