"""Bits of weights stop to matter where the products with them become compute-bound."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.rules import Caution, Rule, Said, Vain

UNQUANTISED = 16
"""Bits of a weight before any quantisation."""


def look(case: Case) -> Iterator[Said]:
    """Applies to moves that go below the bits at which the products of a decode step are compute-bound."""
    product = case.decode_product
    if product is None or case.decode_stake < LITTLE:
        return
    least = product.saturated_bits
    below = tuple(name for name, after in case.weight_only.items() if after.weights.bits < least)
    if not below or (least >= product.bits >= UNQUANTISED):  # the latter is of the rule on weights alone
        return
    where = "are compute-bound already" if least >= product.bits else f"turn compute-bound at {least:.3g} bits a weight"
    text = (
        f"{product.sharing}, so that the products of a decode step {where}: fewer bits save memory, and at the bound no"
    )
    text += " more time"
    yield Caution(text, below)
    yield Vain(below, text)


RULE = Rule(
    "fewer-bits",
    "Stop lowering the bits of weights where the linear layers saturate: fewer bring nothing at large batches.",
    ("yuan R5",),
    look,
)
