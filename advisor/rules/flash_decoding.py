"""Few sequences with long contexts leave most of a device without attention to work on."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.rules import Caution, Hint, Rule, Said, Vain

SLOT = "decode attention kernel"
MUCH = 0.2
"""The share of attention in a decode step from which it is told."""


def look(case: Case) -> Iterator[Said]:
    """Applies where attention is a part of a decode step and has fewer heads and sequences than the device units."""
    units, attentions = case.hardware.units, case.model.attentions
    if not case.generates or units is None or not attentions or case.decode_stake < LITTLE:
        return
    heads = max(1, max(part.kv_heads for part in attentions) // case.scenario.settings.parallel.tensor)
    work = case.batch * heads
    share = case.parts_share(case.decode, lambda op: op.kv_bytes > 0)
    if share < LITTLE:
        yield Vain((SLOT,), f"attention takes {share:.1%} of a decode step")
    if work >= units or share < MUCH:
        return
    text = (
        f"attention takes {share:.0%} of a decode step, in {work} pieces of work for {units} units (batch {case.batch},"
        f" {heads} heads of keys) unless the keys are split"
    )
    if "attention" in case.analysis.fusions:
        yield Caution(f"{text}: times here are of kernels that split them, so choose one that does")
    else:
        yield Hint((SLOT,), text)


RULE = Rule(
    "flash-decoding",
    "Few sequences with long contexts: split attention along the keys, so that all of the device works on it.",
    ("zhou 19", "miao D17"),
    look,
)
