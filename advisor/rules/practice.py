"""Rules about applying advice: combinations, conflicting objectives, fair measurements, security."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.plan import Interaction
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.techniques.base import Price

BEST_MOVES = 3
"""Moves simulated in pairs and at other batches: the best of each slot."""

THROUGHPUT_GAIN = 1.5
"""Throughput at the largest batch over the present one from which the conflict with latency is reported."""

HOST_SHARE = 0.05
"""Host share of a decode step from which measurements should separate it."""

OUTPUT_SLOTS = ("prompt", "output", "retrieval")
"""Slots whose moves change the prompt or the answer and so its length."""

OTHER_MODELS = ("student", "cascade", "model size")
"""Slots that replace the model that was tested."""


@rule
def combinations(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where two of the best moves of different slots do not multiply their gains."""
    chosen = [move for move in case.best if case.fits and case.gain(move.name) > HELPS][:BEST_MOVES]
    for one, other in itertools.combinations(chosen, 2):
        trial = case.trials.attempt([one, other])
        if trial is None:
            continue
        both = float(case.goal.gain(case.base.value, trial.value))
        pair = Interaction((one.name, other.name), case.gain(one.name), case.gain(other.name), both)
        if pair.kind != "independent":
            key = "worse" if pair.kind in ("counteract", "overlap") else "better"
            yield from told(key, moves=pair.names, pair=pair, product=pair.one * pair.other)


@rule
def conflicting_objectives(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where a larger batch fits: throughput against TPOT, and moves that help at some batches only."""
    largest = case.max_batch
    if not case.generates or largest == case.batch or not case.fits or case.goal.loaded:
        return
    batches = sorted({1, case.batch, largest})
    before = case.at_batches(case.base, batches)
    if before is None:
        return
    expected, now = before.expected, batches.index(case.batch)
    assert expected.tpot is not None
    rates, tpots = np.asarray(expected.tokens_per_second.mid), np.asarray(expected.tpot.mid)
    gain = float(rates[-1] / rates[now])
    if gain > THROUGHPUT_GAIN and tpots[-1] > tpots[now] * HELPS:
        yield from told("conflict", gain=gain, now=tpots[now], then=tpots[-1])
    for index, move in enumerate(case.best):  # those that help at one batch and harm at another
        trial = case.trials.attempt([move]) if index < BEST_MOVES or move.slot == "speculative decoding" else None
        after = None if trial is None else case.at_batches(trial, batches)
        if after is None:
            continue
        gains = np.asarray(case.goal.gain(case.goal.value(before), case.goal.value(after)))
        (best, most), (worst, least) = ((batches[at], gains[at]) for at in (np.nanargmax(gains), np.nanargmin(gains)))
        if most > HELPS and least < 1 / HELPS:
            yield from told("some loads", moves=(move.name,), best=best, most=most, worst=worst, least=least)


@rule
def measuring(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where host time is a noticeable part of a step, and to moves that change the answers."""
    if case.generates and case.host_share >= HOST_SHARE:
        yield from told("host", idle=case.host_share * case.decode_breakdown.total)
    changing = tuple(
        move.name
        for move, _ in case.offered(Kind.TECHNIQUE)
        if move.slot in OUTPUT_SLOTS and case.gain(move.name) > HELPS
    )
    if changing:
        yield from told("changed", moves=changing)


@rule
def security(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to KV caches shared by users, where TTFT reveals a hit, and to moves that change the answers."""
    if (ratio := _prefix_speedup(case)) is not None:
        yield from told("cached", ratio=ratio)
    for name, trial in case.trials_of("prefix"):
        faster = float(case.base.figure("ttft") / trial.figure("ttft"))
        if faster > HELPS:
            yield from told("hit", moves=(name,), ratio=faster)
    changing = tuple(
        move.name
        for move, trial in case.offered(Kind.TECHNIQUE)
        if case.gain(move.name) > HELPS
        and (trial.price in (Price.LOSSY, Price.RETRAINING) or move.slot in OTHER_MODELS)
    )
    if changing:
        yield from told("changed", moves=changing)


def _prefix_speedup(case: Case) -> float | None:
    """TTFT without the request's cached prefix over TTFT with it; None without a prefix."""
    prefix = int(case.scenario.prefix)
    if not prefix:
        return None
    try:
        cold = analyze(case.scenario.changed(prompt=prefix + int(case.scenario.prompt), prefix=0))
    except RooflineError:
        return None
    return float(cold.expected.ttft.mid / case.analysis.expected.ttft.mid)
