"""Prefill waits for arithmetic: a higher roof helps, fewer bytes do not."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.formats import counted
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.bound.roof import Bound
from roofline.core.units import seconds, si

SLOWER = 1.01
"""How many times longer prefill has to take for it to be told."""


def look(case: Case) -> Iterator[Said]:
    """Applies where most of prefill is under the compute roof."""
    product, formats = case.prefill_product, case.formats
    share = case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if share < 0.5 or product is None or formats is None:
        return
    yield Finding(
        f"prefill waits for arithmetic: {share:.0%} of its bound time, {case.prefill_share:.0%} of the whole",
        case.prefill_share * share,
        {**product.evidence, "peak": f"{si(formats.peak, 'FLOP/s')} in {formats.arithmetic}"},
    )
    yield from _slower(case)
    if case.prefill_stake < LITTLE or product.memory_bound:
        return
    for name, after in case.faster_arithmetic.items():
        yield Hint(
            (name,),
            f"prefill is compute-bound, and with weights and activations in fewer bits its products run under a roof"
            f" of {si(after.peak, 'FLOP/s')} in {after.arithmetic} instead of {si(formats.peak, 'FLOP/s')}",
        )
    for name, after in case.weight_only.items():
        yield Vain(
            (name,),
            f"prefill is compute-bound, {counted(product.figures.intensity)} FLOP/byte against a ridge of"
            f" {counted(product.ridge)}, and fewer bits leave its products in {after.arithmetic}, which is no faster",
        )


def _slower(case: Case) -> Iterator[Said]:
    """Moves that help and make the first token later: weights have to be converted before they are multiplied."""
    before = float(case.base.figure("ttft"))
    for name, trial in case.trials_of("weight format"):
        if name in case.weight_only and (after := float(trial.figure("ttft"))) > SLOWER * before:
            yield Caution(
                f"prefill gets slower, {seconds(after)} instead of {seconds(before)}: the weights are converted to"
                " 16 bits while arithmetic is what it waits for",
                (name,),
            )


RULE = Rule(
    "compute-bound-prefill",
    "Above the ridge only faster arithmetic helps: weights and activations in few bits, and not weights alone.",
    ("yuan R2", "zhou 2", "zhou 4"),
    look,
)
