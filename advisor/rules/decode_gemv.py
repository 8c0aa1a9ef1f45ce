"""Decode of a few sequences multiplies matrices with vectors: kernels are judged by bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said
from roofline.bound.roof import Bound

FLAT = 16
"""Rows of the activations up to which a product is flat: those of the smallest tile of tensor cores (mma m16n8k16)."""


def look(case: Case) -> Iterator[Said]:
    """Applies where a decode step has few rows, its products wait for memory and take a quarter of the time or more."""
    product = case.decode_product
    if product is None or product.figures.bound != Bound.MEMORY:
        return
    intensity = product.figures.intensity
    rows = max(float(run.step.batch) * float(run.step.queries) for run in case.decode.passes)
    pairs = [
        (op, found)
        for op, found in zip(case.decode.ops, case.decode.expected_ops, strict=True)
        if op.kind == "gemm" and op.weight_bytes > 0
    ]
    spent = sum(float(op.count * found.time.mid) for op, found in pairs)
    share = spent / float(case.decode.expected.mid)
    if rows > FLAT or share < 0.25:
        return
    least = sum(float(op.count * op.bound_time) for op, _ in pairs)
    reached = least / spent
    whole = case.decode_share * share
    yield Finding(
        f"decode multiplies matrices with {rows:.3g} row{'s' if rows > 1 else ''} of activations,"
        f" {intensity:.3g} FLOP a byte: kernels reach {reached:.0%} of what the memory could give",
        whole,
        {
            "ridge": f"{product.ridge:.3g} FLOP/byte",
            "the most that kernels for this shape could gain": f"{1 / (1 - whole * (1 - reached)):.3g} times",
        },
    )
    yield Hint(
        ("weight format", "drafting", "batch", "decode attention kernel", "engine"),
        f"products with {rows:.3g} row{'s' if rows > 1 else ''} use {intensity:.3g} FLOP of each byte: fewer"
        " bytes, more rows, or kernels for matrix-vector products",
    )


RULE = Rule(
    "vector-products",
    "Decode of few sequences is matrix-vector products: kernels made for them, chosen by shape, or more rows.",
    ("zhou 20", "miao D16"),
    look,
)
