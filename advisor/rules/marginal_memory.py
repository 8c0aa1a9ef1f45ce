"""Finer management of memory buys little where memory does not limit the batch."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.core.units import si

ALLOCATION = "KV allocation"
WASTED = 0.05
"""The share of the device's memory that must be reserved and unused to be worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies where the cache is allocated without waste, or memory is left; and to reservations that waste it."""
    if not case.generates:
        return
    memory = case.analysis.memory
    exact = case.technique("token-attention")
    if exact is None:
        return
    wasted = float(memory.kv_cache) - float(exact.analysis.memory.kv_cache)
    if wasted > WASTED * float(memory.capacity):
        yield Finding(
            f"{si(wasted, 'B')} of {si(float(memory.kv_cache), 'B')} of cache are reserved and never used",
            wasted / float(memory.total),
            {"allocation": f"{case.scenario.settings.kv_reserved or case.scenario.settings.kv_block} tokens at a time"},
            of="memory",
        )
        yield Hint((ALLOCATION,), f"{si(wasted, 'B')} of cache are reserved and never used")
        return
    left = float(memory.headroom)
    state = f"{si(left, 'B')} are left" if left > 0 else "what is missing is not lost to it"
    yield Vain(
        (ALLOCATION,),
        f"allocation wastes {si(wasted, 'B')} of {si(float(memory.kv_cache), 'B')} of cache and {state}: finer"
        " management lets no more sequences in",
    )


RULE = Rule(
    "marginal-memory",
    "Fine-grained management of memory buys little where the batch is not limited by memory.",
    ("miao D8",),
    look,
)
