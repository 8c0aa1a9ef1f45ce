"""Structures whose decode does not depend on length: a state instead of a cache."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.breakeven import HELPS
from roofline.core.units import si

NOTICED = 0.25
"""The share of a decode step's bytes from which the cache is worth another structure."""

STATE = ("linear-attention",)
"""Moves that keep a state of fixed size."""


def look(case: Case) -> Iterator[Said]:
    """Applies to models that keep a state, and to others whose decode reads much cache."""
    if not case.generates:
        return
    memory = case.analysis.memory
    if float(memory.state) > 0:
        yield Finding(
            f"{si(float(memory.state) / case.batch, 'B')} of state a sequence, whatever its length; cache"
            f" {si(float(memory.kv_cache) / case.batch, 'B')}",
            float(memory.state) / float(memory.total),
            of="memory",
        )
        return
    share = case.bytes_share(case.decode, "kv")
    if share < NOTICED:
        yield Vain(STATE, f"the cache is {share:.1%} of the bytes of a decode step: its length hardly matters yet")
        return
    yield Hint(STATE, f"the cache is {share:.0%} of the bytes of a decode step and grows with length; a state does not")
    if any(case.gain(name) > HELPS for name in STATE):
        yield Caution("what such models can do beside transformers is still being studied", STATE)


RULE = Rule(
    "structures",
    "State-space models and linear attention decode at a pace that does not depend on length: trained anew, unproven.",
    ("zhou 15",),
    look,
)
