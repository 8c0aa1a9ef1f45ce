"""Padded prompts are computed and thrown away."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain

BATCHING = "prompt batching"


def look(case: Case) -> Iterator[Said]:
    """Applies where prompts are filled up to the longest of their batch or bucket."""
    padding = float(case.scenario.settings.padding)
    wasted = 1 - 1 / padding
    if wasted <= 0:
        yield Vain((BATCHING,), "prompts are packed end to end already: no token is padding")
        return
    yield Finding(
        f"{wasted:.0%} of the prompt tokens that are computed are padding",
        case.prefill_share * wasted,
        {"tokens computed over tokens wanted": f"{padding:.3g}", "prefill": f"{case.prefill_share:.0%} of the time"},
    )
    yield Hint((BATCHING,), f"{wasted:.0%} of the prompt tokens that are computed are padding")
    yield Caution(
        "requests wait until their bucket is full, and buckets share the memory: neither is simulated",
        ("bucketing",),
    )


RULE = Rule(
    "padding",
    "Padding wastes compute and memory: pack prompts, or batch those of similar lengths.",
    ("miao D14",),
    look,
)
