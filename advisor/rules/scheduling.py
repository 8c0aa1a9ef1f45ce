"""Rules about batching, scheduling, prefix sharing, sampling and speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Objective
from roofline.advisor.search.trials import Trial
from roofline.core.units import count_text, seconds
from roofline.techniques import check_request

BLOCKED_STEPS = 10
"""Decode steps that the prefill of one prompt takes from which chunked prefill is reported."""

SLOWER_TTFT = 1.005
"""Ratio of TTFT with chunked prefill to that without from which it is reported."""

CACHE_DOMINATES = 0.5
"""The KV cache's share of a step's bytes from which drafting may pay off beyond the crossover."""

LARGE_VOCABULARY = 0.1
"""Share of lm_head in a decode step from which it is reported."""


@rule(
    "Outputs of uneven length need continuous batching; a static batch suits few sequences at minimal latency.",
    "yuan R16, miao D15, zhou 24",
)
def continuous_batching(case: Case) -> Iterator[Finding]:
    """Applies to a static batch, some of whose sequences end early."""
    if not case.generates:
        return
    useful = float(case.scenario.settings.useful)
    if useful < 1:
        yield Bottleneck(
            f"{1 - useful:.0%} of the tokens generated pad sequences that have ended before the longest",
            case.decode_share * (1 - useful),
            {"useful tokens": f"{useful:.0%}"},
        )
        yield Hint(("continuous-batching",), f"outputs of uneven length waste {1 - useful:.0%} of a static batch")
        if case.goal.objective in (Objective.TTFT, Objective.TPOT, Objective.TOTAL):
            yield Caution("ended sequences of a static batch cost throughput, not step time")
    elif case.batch == 1:
        yield NoBenefit(("continuous-batching",), "a single sequence has no padding")


@rule("Padding wastes compute and memory: pack prompts, or batch prompts of similar lengths.", "miao D14")
def padding(case: Case) -> Iterator[Finding]:
    """Applies where prompts are padded to the longest of their batch or bucket."""
    ratio = float(case.scenario.settings.padding)
    wasted = 1 - 1 / ratio
    if wasted <= 0:
        yield NoBenefit(("prompt batching",), "prompts are packed already: no token is padding")
        return
    text = f"{wasted:.0%} of the prompt tokens computed are padding"
    prefill = f"{case.prefill_share:.0%} of the time"
    yield Bottleneck(
        text, case.prefill_share * wasted, {"computed over useful tokens": f"{ratio:.3g}", "prefill": prefill}
    )
    yield Hint(("prompt batching",), text)
    yield Caution("waiting for a full bucket and memory shared by buckets are not simulated", ("bucketing",))


@rule("Where long prompts share a device with decode steps, chunked prefill keeps ITL steady.", "yuan R19")
def chunked_prefill(case: Case) -> Iterator[Finding]:
    """Applies where the prefill of one of several sequences takes as long as many decode steps."""
    expected = case.analysis.expected
    if not case.generates or expected.tpot is None or case.batch < 2 or case.scenario.settings.chunk is not None:
        return
    prompt, step = float(expected.ttft.mid) / case.batch, float(expected.tpot.mid)
    if prompt < BLOCKED_STEPS * step:
        return
    yield Bottleneck(
        f"the prefill of a new prompt blocks decode for {seconds(prompt)}, the time of {prompt / step:.0f} decode"
        " steps; chunked prefill interleaves them",
        0.0,
        {"prefill of one prompt": seconds(prompt), "decode step": seconds(step)},
    )
    for name, trial in case.trials_of("prefill schedule"):
        slower = float(trial.analysis.expected.ttft.mid / expected.ttft.mid)
        if slower >= SLOWER_TTFT:
            yield Caution(
                f"each chunk reads the weights and earlier KV cache again: TTFT takes {slower:.3g} times as long; the"
                " benefit, steadier ITL of other sequences, is not in the figures of one batch",
                (name,),
            )


@rule(
    "Requests with common prefixes, as of agents and trees of thought, should share their KV cache.",
    "yuan R20, zhou 32",
)
def shared_prefix(case: Case) -> Iterator[Finding]:
    """Applies where the objective depends on prefill and no prefix is cached yet."""
    shared = any(check_request(name).slot == "prefix" for name in case.scenario.techniques)
    if not case.generates or shared:
        return
    if case.prefill_stake < NEGLIGIBLE:
        text = f"prefill takes {case.prefill_share:.1%} of the time: there is little to share"
        if case.goal.objective is Objective.TPOT:
            text = "prefix caching saves prefill, not TPOT"
        yield NoBenefit(("prefix",), text)
        return
    yield Hint(("prefix",), f"prefill takes {case.prefill_share:.0%} of the time, and a shared prefix is computed once")
    for name, _ in case.placed_of("prefix"):
        parts = (part.partition("=") for part in name.partition(":")[2].split(","))
        given = {key: value for key, equals, value in parts if equals}
        hit = float(check_request(name).values(given)["hit"])
        yield Caution(f"the gain assumes prompts that share {hit:.0%} of their tokens: set your own hit rate", (name,))


@rule("Beam search and parallel sampling multiply the KV cache; a large vocabulary lengthens every step.", "miao D25")
def sampling(case: Case) -> Iterator[Finding]:
    """Applies where requests decode as several sequences, or lm_head takes a tenth of a step."""
    if not case.generates:
        return
    beams, memory = case.scenario.settings.beams, case.analysis.memory
    cache = float(memory.kv_cache)
    if beams > 1:
        text = f"{beams} sequences per request keep {cache / 1e9:.3g} GB of KV cache"
        yield Bottleneck(
            text,
            cache / float(memory.total) * (1 - 1 / beams),
            {"KV cache": f"{cache / float(memory.total):.0%} of the memory in use"},
            of="memory",
        )
        yield Hint(("KV format", "KV heads"), text)
    breakdown = case.decode_breakdown
    share = breakdown.parts.get("lm_head", 0.0) / breakdown.total
    if share >= LARGE_VOCABULARY:
        vocabulary = case.model.vocabulary
        text = f"lm_head over a vocabulary of {vocabulary} tokens takes {share:.0%} of a decode step"
        evidence = {"vocabulary": f"{vocabulary}", "hidden size": f"{case.model.hidden}"}
        yield Bottleneck(text, case.decode_share * share, evidence)
        yield Hint(("vocabulary",), text)


@rule(
    "Speculative decoding is lossless and helps while decode is memory-bound, by less than the tokens accepted since"
    " drafts cost time, and no longer once verified tokens times batch cross the ridge point.",
    "yuan R12, zhou 22",
)
def speculative_decoding(case: Case) -> Iterator[Finding]:
    """Applies to every drafting technique, on either side of the crossover."""
    gemm = case.decode_gemm
    if gemm is None or case.decode_stake < NEGLIGIBLE:
        return
    cache = case.bytes_share(case.decode, "kv")
    for name, trial in case.trials_of("speculative decoding"):
        speculation = trial.analysis.scenario.settings.speculation
        if speculation is None:
            continue
        verified = (speculation.verified + 1) * gemm.rows
        step = f"{speculation.verified + 1} tokens per sequence make {count_text(verified)} that share each weight"
        if verified > gemm.crossover:
            text = f"{step}, beyond the crossover at {count_text(gemm.crossover)}: verification GEMMs are compute-bound"
            yield NoBenefit((name,), text)
            if cache >= CACHE_DOMINATES:
                yield Hint((name,), f"{text}; but the KV cache, {cache:.0%} of the bytes, is read once for all of them")
        else:
            yield Hint((name,), f"{step}; up to {count_text(gemm.crossover)} cost no more than one")
        yield from _draft_cost(case, name, trial)


def _draft_cost(case: Case, name: str, trial: Trial) -> Iterator[Finding]:
    """Compares the tokens that a step yields with the gain in TPOT."""
    tokens, before = trial.analysis.tokens_per_iteration, case.analysis.expected.tpot
    after = trial.analysis.expected.tpot
    if before is None or after is None:
        return
    faster = float(before.mid / after.mid)
    if HELPS < faster < tokens:
        yield Caution(
            f"a step yields {tokens:.3g} tokens but takes {tokens / faster:.3g} times as long with its drafts: TPOT"
            f" improves {faster:.3g} times",
            (name,),
        )
