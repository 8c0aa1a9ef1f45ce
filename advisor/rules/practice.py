"""Rules about applying advice: combinations, conflicting objectives, fair measurements, security."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Price
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.plan import Interaction
from roofline.core.errors import RooflineError
from roofline.core.units import seconds
from roofline.scenario.analysis import Analysis, analyze

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


@rule("Simulate combinations of methods: memory optimizations may counteract one another.", "zhou 31, miao D9")
def combinations(case: Case) -> Iterator[Finding]:
    """Applies where two of the best moves of different slots do not multiply their gains."""
    chosen = [move for move in case.best if case.fits and case.gain(move.name) > HELPS][:BEST_MOVES]
    for one, other in itertools.combinations(chosen, 2):
        trial = case.trials.attempt([one, other])
        if trial is None:
            continue
        both = float(case.goal.gain(case.base.value, trial.value))
        pair = Interaction((one.name, other.name), case.gain(one.name), case.gain(other.name), both)
        text = (
            f"{pair.one:.3g} and {pair.other:.3g} times alone, {pair.both:.3g} times together; their product is"
            f" {pair.one * pair.other:.3g}"
        )
        if pair.kind in ("counteract", "overlap"):
            yield Caution(f"{one.name} and {other.name} {pair.kind}: {text}", pair.names)
        elif pair.kind != "independent":
            yield Hint(pair.names, f"{one.name} and {other.name} reinforce each other: {text}")


@rule(
    "Latency and throughput conflict, and a technique may help at one load and harm at another: state the objective.",
    "miao D3, miao D21",
)
def conflicting_objectives(case: Case) -> Iterator[Finding]:
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
        yield Caution(
            f"throughput and latency conflict: a batch of {largest} has {gain:.3g} times the throughput, and TPOT rises"
            f" from {seconds(float(tpots[now]))} to {seconds(float(tpots[-1]))}"
        )
    yield from _load_dependent(case, before, batches)


def _load_dependent(case: Case, before: Analysis, batches: list[int]) -> Iterator[Finding]:
    """Moves that help at one batch and harm at another, of the best ones and drafting."""
    for index, move in enumerate(case.best):
        trial = case.trials.attempt([move]) if index < BEST_MOVES or move.slot == "speculative decoding" else None
        after = None if trial is None else case.at_batches(trial, batches)
        if after is None:
            continue
        gains = np.asarray(case.goal.gain(case.goal.value(before), case.goal.value(after)))
        best, worst = int(np.nanargmax(gains)), int(np.nanargmin(gains))
        if gains[best] > HELPS and gains[worst] < 1 / HELPS:
            yield Caution(
                f"helps at some loads only: {gains[best]:.3g} times at batch {batches[best]}, {gains[worst]:.3g}"
                f" times at batch {batches[worst]}",
                (move.name,),
            )


@rule("Compare fairly: without queueing and network, with the same outputs, over enough settings.", "miao D22")
def measuring(case: Case) -> Iterator[Finding]:
    """Applies where host time is a noticeable part of a step, and to moves that change the answers."""
    if case.generates and case.host_share >= HOST_SHARE:
        yield Caution(
            f"{seconds(case.host_share * case.decode_breakdown.total)} of each decode step, {case.host_share:.0%}, is"
            " host time: to compare kernels or devices measure it separately, without queueing and network, over the"
            f" same {int(case.scenario.generate)} output tokens"
        )
    changing = tuple(
        move.name
        for move, _ in case.offered(Kind.TECHNIQUE)
        if move.slot in OUTPUT_SLOTS and case.gain(move.name) > HELPS
    )
    if changing:
        yield Caution("the answers change: compare at equal quality and output length, not by time alone", changing)


@rule("Consider the security of efficient inference: shared caches and changed answers.", "zhou 34")
def security(case: Case) -> Iterator[Finding]:
    """Applies to KV caches shared by users, where TTFT reveals a hit, and to moves that change the answers."""
    if (ratio := _prefix_speedup(case)) is not None:
        yield Caution(
            f"a cached prefix of {int(case.scenario.prefix)} tokens lowers TTFT {ratio:.3g} times: if users share the"
            " cache, TTFT reveals the prompts of others"
        )
    for name, trial in case.trials_of("prefix"):
        ratio = float(case.base.figure("ttft") / trial.figure("ttft"))
        if ratio > HELPS:
            yield Caution(
                f"a hit lowers TTFT {ratio:.3g} times, which reveals the prompts of other users: isolate their caches",
                (name,),
            )
    changing = tuple(
        move.name
        for move, trial in case.offered(Kind.TECHNIQUE)
        if case.gain(move.name) > HELPS
        and (trial.price in (Price.LOSSY, Price.RETRAINING) or move.slot in OTHER_MODELS)
    )
    if changing:
        yield Caution("the answers change: repeat tests of refusals and data leakage", changing)


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
