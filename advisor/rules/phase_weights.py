"""Which phase to work on: the one that takes the time."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Rule, Said
from roofline.core.units import seconds

MOST = 2 / 3
"""The share of the time from which one phase alone is named."""


def look(case: Case) -> Iterator[Said]:
    """Applies to all that generate more than a token: other models have one phase."""
    if not case.generates:
        return
    decode = case.decode_share
    name, share = ("decode", decode) if decode >= 0.5 else ("prefill", 1 - decode)
    text = f"{name} takes {share:.0%} of the time: what speeds it up counts most"
    if share < MOST:
        text = f"prefill takes {1 - decode:.0%} of the time and decode {decode:.0%}: both count"
    expected = case.analysis.expected
    assert expected.tpot is not None
    yield Finding(
        text,
        share,
        {
            "time to first token": seconds(float(expected.ttft.mid)),
            "time per output token": seconds(float(expected.tpot.mid)),
            "tokens": f"{int(case.scenario.prompt_tokens)} read, {int(case.scenario.generate)} generated",
        },
    )


RULE = Rule(
    "phase-weights",
    "Prefill runs once and decode for every token: look at both apart, and work on the one that takes the time.",
    ("yuan R3", "miao D1"),
    look,
)
