"""Rules about batching, scheduling, prefix sharing, sampling and speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Objective
from roofline.techniques import check_request

BLOCKED_STEPS = 10
"""Decode steps that the prefill of one prompt takes from which chunked prefill is reported."""

SLOWER_TTFT = 1.005
"""Ratio of TTFT with chunked prefill to that without from which it is reported."""

CACHE_DOMINATES = 0.5
"""The KV cache's share of a step's bytes from which drafting may pay off beyond the crossover."""

LARGE_VOCABULARY = 0.1
"""Share of lm_head in a decode step from which it is reported."""


@rule
def continuous_batching(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to a static batch, some of whose sequences end early."""
    if not case.generates:
        return
    useful = float(case.scenario.settings.useful)
    if useful < 1:
        yield from told("uneven", case.decode_share * (1 - useful), useful=useful, wasted=1 - useful)
        if case.goal.objective in (Objective.TTFT, Objective.TPOT, Objective.TOTAL):
            yield from told("throughput")
    elif case.batch == 1:
        yield from told("single")


@rule
def padding(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where prompts are padded to the longest of their batch or bucket."""
    ratio = float(case.scenario.settings.padding)
    wasted = 1 - 1 / ratio
    if wasted <= 0:
        yield from told("packed")
        return
    yield from told("padded", case.prefill_share * wasted, wasted=wasted, ratio=ratio)
    yield from told("waiting")


@rule
def chunked_prefill(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the prefill of one of several sequences takes as long as many decode steps."""
    expected = case.analysis.expected
    if not case.generates or expected.tpot is None or case.batch < 2 or case.scenario.settings.chunk is not None:
        return
    prompt, step = float(expected.ttft.mid) / case.batch, float(expected.tpot.mid)
    if prompt < BLOCKED_STEPS * step:
        return
    yield from told("blocked", prompt=prompt, step=step, steps=prompt / step)
    for name, trial in case.trials_of("prefill schedule"):
        slower = float(trial.analysis.expected.ttft.mid / expected.ttft.mid)
        if slower >= SLOWER_TTFT:
            yield from told("slower", moves=(name,), slower=slower)


@rule
def shared_prefix(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the objective depends on prefill and no prefix is cached yet."""
    shared = any(check_request(name).slot == "prefix" for name in case.scenario.techniques)
    if not case.generates or shared:
        return
    if case.prefill_stake < NEGLIGIBLE:
        yield from told("tpot" if case.goal.objective is Objective.TPOT else "short")
        return
    yield from told("long")
    for name, _ in case.placed_of("prefix"):
        parts = (part.partition("=") for part in name.partition(":")[2].split(","))
        given = {key: value for key, equals, value in parts if equals}
        yield from told("assumed", moves=(name,), hit=float(check_request(name).values(given)["hit"]))


@rule
def sampling(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where requests decode as several sequences, or lm_head takes a tenth of a step."""
    if not case.generates:
        return
    beams, memory = case.scenario.settings.beams, case.analysis.memory
    if beams > 1:
        cache = float(memory.kv_cache)
        part = cache / float(memory.total)
        yield from told("beams", part * (1 - 1 / beams), beams=beams, cache=cache / 1e9, part=part)
    breakdown = case.decode_breakdown
    share = breakdown.parts.get("lm_head", 0.0) / breakdown.total
    if share >= LARGE_VOCABULARY:
        yield from told("head", case.decode_share * share, share=share)


@rule
def speculative_decoding(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to every drafting technique, on either side of the crossover."""
    gemm = case.decode_gemm
    if gemm is None or case.decode_stake < NEGLIGIBLE:
        return
    cache, before = case.bytes_share(case.decode, "kv"), case.analysis.expected.tpot
    for name, trial in case.trials_of("speculative decoding"):
        speculation = trial.analysis.scenario.settings.speculation
        if speculation is None:
            continue
        each, verified = speculation.verified + 1, (speculation.verified + 1) * gemm.rows
        beyond = verified > gemm.crossover
        for key in ("beyond", *(["cache"] if cache >= CACHE_DOMINATES else [])) if beyond else ("free",):
            yield from told(key, moves=(name,), gemm=gemm, each=each, verified=verified, cache=cache)
        # The tokens that a step yields, and the gain in TPOT.
        tokens, after = trial.analysis.tokens_per_iteration, trial.analysis.expected.tpot
        faster = float(before.mid / after.mid) if before is not None and after is not None else 0.0
        if HELPS < faster < tokens:
            yield from told("drafts", moves=(name,), tokens=tokens, longer=tokens / faster, faster=faster)
