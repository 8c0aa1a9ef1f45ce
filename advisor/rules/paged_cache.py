"""Memory kept for cache that is never written."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said
from roofline.core.units import si

PAGED = ("paged-attention", "token-attention")


def look(case: Case) -> Iterator[Said]:
    """Applies where memory is reserved for longer sequences than there are."""
    settings, scenario = case.scenario.settings, case.scenario
    memory = case.analysis.memory
    if settings.kv_reserved is None or not case.generates or not memory.kv_cache:
        return
    used, reserved = int(scenario.first_cached + scenario.generate - 1), float(settings.kv_reserved)
    wasted = 1 - used / reserved
    if wasted <= 0:
        return
    yield Finding(
        f"{wasted:.0%} of the memory for cache is reserved and never written: {reserved:.0f} tokens a sequence, of"
        f" which {used} are used",
        float(memory.kv_cache / memory.total) * wasted,
        {"cache reserved": si(float(memory.kv_cache), "B"), "never written": si(float(memory.kv_cache) * wasted, "B")},
        of="memory",
    )
    yield Hint(
        (*PAGED, "s3"), f"{wasted:.0%} of the cache's memory is reserved for lengths that no sequence here reaches"
    )
    yield Caution(
        "the blocks of a sequence lie anywhere in memory: attention needs kernels made for that, as engines with such"
        " caches have",
        PAGED,
    )


RULE = Rule(
    "paged-cache",
    "Where lengths are not known, keep the cache in blocks rather than reserve the longest; attention then reads"
    " scattered memory.",
    ("yuan R17", "miao D7", "zhou 25"),
    look,
)
