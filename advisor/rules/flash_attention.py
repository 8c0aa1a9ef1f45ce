"""Scores that are written to memory: attention in one kernel never does."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.core.units import si

FUSED = ("flash-attention", "whole-layer-fusion")

LEAST = 0.01
"""The share of attention in the bytes of prefill below which it is left aside."""


def look(case: Case) -> Iterator[Said]:
    """Applies where attention is several kernels, whose scores grow with the square of the prompt."""
    if "attention" in case.analysis.fusions:
        yield Vain(("flash-attention",), "attention is one kernel already")
        return
    prefill = case.analysis.prefill
    parts = [op for op in prefill.ops if op.name.endswith(("softmax", "qk", "sv"))]
    moved = sum(float(op.count * op.bytes) for op in parts)
    if not moved:
        return
    share = moved / float(prefill.bytes)
    if share < LEAST:
        return
    spent = case.parts_share(prefill, lambda op: op in parts)
    peak = float(case.analysis.memory.activation_peak)
    if share >= LITTLE:
        yield Finding(
            f"{share:.0%} of the bytes of prefill are attention's, whose scores are written and read again:"
            f" {spent:.0%} of its time",
            case.prefill_share * spent,
            {"bytes of attention": si(moved, "B"), "activations at their peak": si(peak, "B")},
        )
    yield Hint(
        FUSED,
        f"with prompts of {int(case.scenario.prompt_tokens)} tokens attention moves {share:.0%} of prefill's bytes,"
        " most of them scores that one kernel keeps on the chip",
    )


RULE = Rule(
    "flash-attention",
    "Long contexts want attention in one tiled kernel: scores no longer move, and their memory is not needed.",
    ("yuan R21", "miao D19"),
    look,
)
