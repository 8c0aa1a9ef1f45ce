"""What is shared between users, or answers otherwise, is also a matter of security."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Price
from roofline.advisor.search.moves import Kind
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze

SHARED = "prefix"
OTHER_MODELS = ("student", "cascade", "model size")
"""Slots that put another model in the place of the one that was tested."""


def look(case: Case) -> Iterator[Said]:
    """Applies to caches that users share, where a hit shows in TTFT, and to moves that change what is answered."""
    if told := _shared(case):
        yield Caution(told)
    shared = [(move, trial) for move, trial in case.offered(Kind.TECHNIQUE) if move.slot == SHARED]
    for move, trial in shared:
        ratio = float(case.base.figure("ttft") / trial.figure("ttft"))
        if ratio > HELPS:
            yield Caution(
                f"a hit answers {ratio:.3g} times sooner, which shows one user what another has asked: keep the caches"
                " of users apart",
                (move.name,),
            )
    changing = tuple(
        move.name
        for move, trial in case.offered(Kind.TECHNIQUE)
        if case.gain(move.name) > HELPS
        and (trial.price in (Price.LOSSY, Price.RETRAINING) or move.slot in OTHER_MODELS)
    )
    if changing:
        yield Caution("what is answered changes: test again what the model refuses and gives away", changing)


def _shared(case: Case) -> str:
    """What a cached prefix of the request itself gives away."""
    prefix = int(case.scenario.prefix)
    if not prefix:
        return ""
    try:
        cold = analyze(replace(case.scenario, prompt=prefix + int(case.scenario.prompt), prefix=0))
    except RooflineError:
        return ""
    ratio = float(cold.expected.ttft.mid / case.analysis.expected.ttft.mid)
    return (
        f"{prefix} tokens are found in a cache and answered {ratio:.3g} times sooner: where users share it, that shows"
        " one what another has asked"
    )


RULE = Rule(
    "security",
    "Look at the security of what makes inference efficient: shared caches and changed answers.",
    ("zhou 34",),
    look,
)
