"""What prompts have in common need not be computed twice."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.rules import Caution, Hint, Rule, Said, Vain
from roofline.advisor.search.goal import Objective
from roofline.techniques import check_request


def look(case: Case) -> Iterator[Said]:
    """Applies where prefill is a part of what the goal hangs on."""
    if not case.generates or case.in_use("prefix"):
        return
    stake = case.prefill_stake
    if stake < LITTLE:
        why = f"prefill takes {case.prefill_share:.1%} of the time: there is little to share"
        if case.goal.objective is Objective.TPOT:
            why = "a prefix that is computed once saves prefill, and none of the time per output token"
        yield Vain(("prefix",), why)
        return
    yield Hint(
        ("prefix",),
        f"prefill takes {case.prefill_share:.0%} of the time, of which a prefix that requests share is computed once",
    )
    for name, _ in case.trials_of("prefix"):
        hit = check_request(name).values(dict(_given(name)))["hit"]
        yield Caution(
            f"the gain is that of prompts which share {float(hit):.0%} of their tokens: give your own", (name,)
        )


def _given(name: str) -> Iterator[tuple[str, str]]:
    for part in name.partition(":")[2].split(","):
        key, equals, value = part.partition("=")
        if equals:
            yield key, value


RULE = Rule(
    "shared-prefix",
    "Requests that share prefixes, as agents and trees of thought do, should share their cache as well.",
    ("yuan R20", "zhou 32"),
    look,
)
