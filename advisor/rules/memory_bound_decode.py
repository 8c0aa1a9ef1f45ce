"""Decode waits for memory: fewer bytes, or more sequences that share them."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.formats import Product
from roofline.advisor.rules import Finding, Hint, Rule, Said
from roofline.bound.roof import Bound


def look(case: Case) -> Iterator[Said]:
    """Applies where most of a decode step is under the memory roof."""
    if not case.generates or (share := case.bound_share(case.decode, Bound.MEMORY)) < 0.5:
        return
    linear = case.decode_product
    weights, cache = (case.bytes_share(case.decode, role) for role in ("weight", "kv"))
    yield Finding(
        f"decode waits for memory: {share:.0%} of its bound time, {case.decode_share:.0%} of the whole",
        case.decode_share * share,
        {**_product(linear), "bytes of weights": f"{weights:.0%}", "bytes of cache": f"{cache:.0%}"},
    )
    if case.decode_stake < LITTLE:
        return
    names = ["drafting", "residual-norm-fusion", "qkv-fusion", "batch"]
    if linear is not None and linear.figures.bound == Bound.MEMORY:
        names.append("weight format")
    if cache >= LITTLE:
        names.append("KV format")
    yield Hint(
        tuple(names),
        f"decode is memory-bound, {weights:.0%} of its bytes are weights and {cache:.0%} cache",
    )


def _product(linear: Product | None) -> dict[str, str]:
    if linear is None:
        return {}
    intensity = f"{linear.figures.intensity:.3g} FLOP/byte in {linear.name}"
    return {"intensity": intensity, "ridge": f"{linear.ridge:.3g} FLOP/byte"}


RULE = Rule(
    "memory-bound-decode",
    "Below the ridge only fewer bytes help: quantise, fuse kernels, or let more sequences share the weights.",
    ("yuan R1", "yuan R15", "zhou 1", "miao D2"),
    look,
)
