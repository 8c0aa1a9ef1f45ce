"""Fewer bits of weights help as long as the products with them wait for memory."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.formats import counted
from roofline.advisor.rules import Hint, Rule, Said, Vain


def look(case: Case) -> Iterator[Said]:
    """Applies to decode: below the crossover there is something to gain, above it nothing."""
    product, formats = case.decode_product, case.formats
    if product is None or formats is None or case.decode_stake < LITTLE:
        return
    if not product.memory_bound:
        if case.weight_only:
            yield Vain(
                tuple(case.weight_only),
                f"{product.sharing} in a decode step, beyond the crossover at"
                f" {counted(product.crossover)} tokens: its products are compute-bound with more bits and with fewer",
            )
        return
    read = case.bytes_share(case.decode, "weight")
    for name, after in case.weight_only.items():
        cap = formats.weights.bits / after.weights.bits
        still = product.rows < product.crossover_at(after.weights.bits)
        yield Hint(
            (name,),
            f"{product.sharing}, and products wait for memory up to {counted(product.crossover)} tokens;"
            f" weights are {read:.0%} of a step's bytes and shrink {cap:.3g} times, so that no step can gain more"
            + (
                "" if still else f"; with so few bits products become compute-bound, and gain less than {cap:.3g} times"
            ),
        )


RULE = Rule(
    "weight-only",
    "Weight-only quantisation helps below the crossover of ridge times bytes over two tokens, at most by the ratio of"
    " bits, and less with larger batches, longer contexts and smaller models.",
    ("yuan R4", "yuan R26", "zhou 3", "zhou 5", "zhou 6"),
    look,
)
