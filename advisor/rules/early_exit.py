"""Early exit: what is left out of a step has to be left out for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said

TOGETHER = ("skipdecode",)
"""Techniques in which all sequences of a batch leave at the same layer."""


def look(case: Case) -> Iterator[Said]:
    """Applies to techniques that skip layers in decode."""
    if not case.generates:
        return
    for name, trial in case.trials_of("depth"):
        depth = trial.analysis.scenario.settings.depth
        if name.partition(":")[0] in TOGETHER:
            yield Hint((name,), "all sequences of the batch leave at one layer, and the cache needs no copies")
            continue
        if case.batch == 1:
            yield Caution(
                "after every layer where a token may leave, a classifier runs, and the cache of the layers left out is"
                " computed later: neither is in the gain, so prefer few exits",
                (name,),
            )
        else:
            yield Caution(
                f"a layer is saved only when all {case.batch} sequences have left: if tokens leave one by one at"
                f" {depth:.0%} of the layers on average, nearly all steps run deeper, which is not in the gain;"
                " prefer an exit that the batch shares",
                (name,),
            )


RULE = Rule(
    "early-exit",
    "Early exit gains little where confidence is checked at every layer or sequences of a batch leave at different"
    " ones: prefer few exits that the batch shares, and compute the cache of skipped layers again.",
    ("yuan R13", "zhou 28"),
    look,
)
