"""Distillation: another, smaller model of any shape, at the price of training it."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Hint, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Quality

HALF = "layer-pruning:share=0.5"


def look(case: Case) -> Iterator[Said]:
    """Applies where training is within the budget and a model of half the layers, simulated, is better."""
    if case.goal.quality is not Quality.RETRAIN or case.model.layers < 2:
        return
    student = case.technique(HALF)
    if student is None or (ratio := float(case.goal.gain(case.base.value, student.value))) <= HELPS:
        return
    layers = student.analysis.scenario.model.layers
    yield Hint(
        ("model size", "student"),
        f"a smaller model may have any shape: with {layers} of {case.model.layers} layers it gains {ratio:.3g} times",
    )
    yield Caution(
        f"a distilled model, which gains {ratio:.3g} times here with {layers} layers instead of {case.model.layers}, is"
        " another model: it takes a large training run, and its answers are to be judged on their own"
    )


RULE = Rule(
    "distillation",
    "A distilled model has any shape one likes and takes much training: another model, not a setting.",
    ("yuan R28",),
    look,
)
