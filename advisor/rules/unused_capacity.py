"""Memory that no sequence uses, where more of them would give more."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said
from roofline.core.units import si

NOTICED = 0.2
"""The share of the device's memory that must be left to be worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies where the batch may vary, a larger one fits, and a fifth of the memory or more is left."""
    memory = case.analysis.memory
    left = float(memory.headroom) / float(memory.capacity)
    if not case.goal.batch_varies or left < NOTICED or case.most_batch == case.batch:
        return
    yield Finding(
        f"{si(float(memory.headroom), 'B')} of {si(float(memory.capacity), 'B')} are left: {case.most_batch}"
        f" sequences fit at once, {case.batch} {'runs' if case.batch == 1 else 'run'}",
        left,
        {"cache": si(float(memory.kv_cache), "B"), "weights": si(float(memory.weights), "B")},
        of="memory",
    )
    yield Hint(("batch",), f"{left:.0%} of the memory is left, room for {case.most_batch} sequences at once")


RULE = Rule(
    "unused-capacity",
    "Memory that is left is room for more sequences, which share the weights that a step reads.",
    ("yuan R15",),
    look,
)
