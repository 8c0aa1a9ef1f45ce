"""Measuring what was advised: what to leave out, and what to keep the same."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.moves import Kind
from roofline.core.units import seconds

NOTICED = 0.05
"""The share of a decode step from which the host is worth a word."""

RESHAPING = ("prompt", "output", "retrieval")
"""Slots whose moves change what is asked or answered, and so how long it is."""


def look(case: Case) -> Iterator[Said]:
    """Applies where the host takes part of a step, and to moves after which answers are others."""
    if case.generates and case.host_share >= NOTICED:
        yield Caution(
            f"{seconds(case.host_share * case.decode_parts.total)} of each decode step, {case.host_share:.0%}, is the"
            " host's: to compare kernels or devices measure it apart, without queueing and network, over the same"
            f" {int(case.scenario.generate)} tokens of output"
        )
    reshaping = tuple(
        move.name for move, _ in case.offered(Kind.TECHNIQUE) if move.slot in RESHAPING and case.gain(move.name) > HELPS
    )
    if reshaping:
        yield Caution(
            "answers become others: compare at equal quality and length of answers, not by time alone", reshaping
        )


RULE = Rule(
    "measuring",
    "Compare fairly: without queueing and network, with the same outputs, over enough settings.",
    ("miao D22",),
    look,
)
