"""Bits of weights stop to matter where the products with them become compute-bound."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.case import LITTLE, Case
from advisor.rules import Caution, Rule, Said, Vain


def look(case: Case) -> Iterator[Said]:
    """Applies to moves that go below the bits at which the products of a decode step are compute-bound."""
    product = case.decode_product
    if product is None or case.decode_stake < LITTLE:
        return
    least = product.saturated_bits
    below = tuple(name for name, after in case.weight_only.items() if after.weights.bits < least)
    if not below:
        return
    text = (
        f"{product.sharing}, so that the products of a decode step turn compute-bound at"
        f" {least:.3g} bits a weight: fewer save memory and no more time"
    )
    yield Caution(text, below)
    yield Vain(below, text)


RULE = Rule(
    "fewer-bits",
    "Stop lowering the bits of weights where the linear layers saturate: fewer bring nothing at large batches.",
    ("yuan R5",),
    look,
)
