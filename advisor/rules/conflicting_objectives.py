"""Latency against throughput, and techniques that help at one load and harm at another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Rule, Said
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.moves import Move
from roofline.core.units import seconds
from roofline.scenario.analysis import Analysis

LOOKED_AT = 3
"""Moves whose gains are simulated at other loads, beside drafting: the best of each slot."""

APART = 1.5
"""How much throughput must rise with the batch to be worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies where a larger batch fits, gives more tokens a second and makes each wait; and to gains that turn."""
    most = case.most_batch
    if not case.generates or most == case.batch:
        return
    batches = sorted({1, case.batch, most})
    before = case.at_batches(case.base, batches)
    if before is None:
        return
    expected, now = before.expected, batches.index(case.batch)
    assert expected.tpot is not None
    rates, waits = np.asarray(expected.tokens_per_second.mid), np.asarray(expected.tpot.mid)
    more = float(rates[-1] / rates[now])
    if more > APART and waits[-1] > waits[now] * HELPS:
        yield Caution(
            f"throughput and latency conflict: {most} sequences at once give {more:.3g} times the tokens a second, and"
            f" TPOT rises from {seconds(float(waits[now]))} to {seconds(float(waits[-1]))}"
        )
    yield from _turning(case, before, batches)


def _turning(case: Case, before: Analysis, batches: list[int]) -> Iterator[Said]:
    """Moves that help at one batch and harm at another."""
    for move in _looked_at(case):
        trial = case.trials.attempt([move])
        after = None if trial is None else case.at_batches(trial, batches)
        if after is None:
            continue
        gains = np.asarray(case.goal.gain(case.goal.value(before), case.goal.value(after)))
        best, worst = int(np.nanargmax(gains)), int(np.nanargmin(gains))
        if gains[best] > HELPS and gains[worst] < 1 / HELPS:
            yield Caution(
                f"it helps at some loads only: {gains[best]:.3g} times at batch {batches[best]}, {gains[worst]:.3g}"
                f" times at batch {batches[worst]}",
                (move.name,),
            )


def _looked_at(case: Case) -> list[Move]:
    return [move for index, move in enumerate(case.best) if index < LOOKED_AT or move.slot == "drafting"]


RULE = Rule(
    "conflicting-objectives",
    "Latency and throughput conflict, and a technique may help at one load and harm at another: say which is wanted.",
    ("miao D3", "miao D21"),
    look,
)
