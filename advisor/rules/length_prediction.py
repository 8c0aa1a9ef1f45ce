"""Predicted lengths: memory is reserved for what a predictor says, and predictors miss."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Rule, Said
from roofline.advisor.search.breakeven import HELPS

MISSED = "s3:excess=2"
"""A prediction of twice the tokens that are needed."""


def look(case: Case) -> Iterator[Said]:
    """Applies where reserving memory for predicted lengths is offered and helps."""
    offered = case.moves.get("s3")
    trial = None if offered is None else case.trials.attempt([offered])
    if trial is None:
        return
    saves = len(trial.missed) < len(case.base.missed)
    if not saves and case.gain("s3") <= HELPS:
        return
    missed = case.technique(MISSED)
    if missed is None:
        return
    now, then = (float(found.analysis.memory.total) for found in (trial, missed))
    fits = "fits" if missed.used["capacity"] <= 1 else "does not fit"
    yield Caution(
        f"lengths are taken to be known: predicted twice too long, it takes {then / 1e9:.3g} GB instead of"
        f" {now / 1e9:.3g} GB and {fits}",
        ("s3",),
    )


RULE = Rule(
    "length-prediction",
    "Predictors of answer lengths fall short: count on less than a perfect prediction gives.",
    ("zhou 33",),
    look,
)
