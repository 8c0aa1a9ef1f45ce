"""Rules about the KV cache: its size, its format, its allocation, and the room it leaves."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Objective
from roofline.advisor.search.moves import Kind
from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.parallel import Parallelism

LARGE_CACHE = 0.3
"""Share of bytes from which the KV cache is reported."""

WASTED = 0.05
"""Share of device memory reserved but unused from which it is reported."""

UNUSED = 0.2
"""Share of device memory free from which it is reported."""

PAGED = ("paged-attention", "token-attention")

OVERPREDICTED = "s3:excess=2"
"""A length predictor that reserves twice the tokens needed."""


@rule(
    "The KV cache grows with batch and context and lives as long as a request: quantize it where it dominates bytes"
    " or limits the batch.",
    "yuan R7, yuan R18, zhou 10",
)
def kv_cache_growth(case: Case) -> Iterator[Finding]:
    """Applies where the KV cache is a large part of the bytes of a step, or of memory."""
    memory = case.analysis.memory
    if not case.generates or not memory.kv_cache:
        return
    read = case.bytes_share(case.decode, "kv")
    each = float(memory.kv_cache + memory.state) / case.batch
    room = int(max(float(memory.headroom) + each * case.batch, 0) // each)
    cache = si(float(memory.kv_cache), "B")
    if read >= LARGE_CACHE:
        yield Bottleneck(
            f"{read:.0%} of the bytes of a decode step are KV cache",
            case.decode_share * read,
            {
                "KV cache": cache,
                "weights": si(float(memory.weights), "B"),
                "activations in a decode step": f"{case.bytes_share(case.decode, 'activation'):.2%} of its bytes",
                "activations in prefill": f"{case.bytes_share(case.analysis.prefill, 'activation'):.0%} of its bytes",
            },
        )
    if memory.kv_cache >= (LARGE_CACHE * memory.total if not memory.fits else memory.weights):
        yield Bottleneck(
            f"KV cache is {memory.kv_cache / memory.total:.0%} of the memory needed: {room} sequences of this length"
            f" fit, {case.batch} are requested",
            float(memory.kv_cache / memory.total),
            {"KV cache": cache, "capacity": si(float(memory.budget), "B"), "per sequence": si(each, "B")},
            of="memory",
        )
    limited = not memory.fits or case.goal.batch_varies or case.goal.objective is Objective.MEMORY
    if (read >= LARGE_CACHE and case.decode_stake >= NEGLIGIBLE) or (
        limited and memory.kv_cache > NEGLIGIBLE * memory.total
    ):
        yield Hint(
            ("KV format",),
            f"KV cache is {read:.0%} of a step's bytes, and {room} sequences fit in memory where {case.batch} are"
            " requested",
        )
    elif read < NEGLIGIBLE and memory.fits:
        yield NoBenefit(
            ("KV format",),
            f"KV cache is only {read:.1%} of the bytes of a decode step; weights are"
            f" {case.bytes_share(case.decode, 'weight'):.0%}",
        )


@rule(
    "Where lengths are unknown, allocate the KV cache in blocks rather than for the maximum length; attention then"
    " reads scattered memory.",
    "yuan R17, miao D7, zhou 25",
)
def paged_cache(case: Case) -> Iterator[Finding]:
    """Applies where memory is reserved for longer sequences than there are."""
    settings, scenario = case.scenario.settings, case.scenario
    memory = case.analysis.memory
    if settings.kv_reserved is None or not case.generates or not memory.kv_cache:
        return
    used, reserved = int(scenario.first_cached + scenario.generate - 1), float(settings.kv_reserved)
    wasted = 1 - used / reserved
    if wasted <= 0:
        return
    cache = float(memory.kv_cache)
    yield Bottleneck(
        f"{wasted:.0%} of the memory for KV cache is reserved and never written: {reserved:.0f} tokens per sequence,"
        f" of which {used} are used",
        float(memory.kv_cache / memory.total) * wasted,
        {"KV cache reserved": si(cache, "B"), "never written": si(cache * wasted, "B")},
        of="memory",
    )
    yield Hint((*PAGED, "s3"), f"{wasted:.0%} of the KV cache is reserved for lengths that no sequence here reaches")
    yield Caution("the KV blocks of a sequence are scattered: attention needs kernels with paged KV cache", PAGED)


@rule("Finer KV cache allocation gains little where memory does not limit the batch.", "miao D8")
def kv_allocation(case: Case) -> Iterator[Finding]:
    """Compares the memory reserved for KV cache with allocation by the token."""
    exact = case.technique("token-attention") if case.generates else None
    if exact is None:
        return
    memory, settings = case.analysis.memory, case.scenario.settings
    wasted = float(memory.kv_cache) - float(exact.analysis.memory.kv_cache)
    if wasted > WASTED * float(memory.budget):
        yield Bottleneck(
            f"{si(wasted, 'B')} of {si(float(memory.kv_cache), 'B')} of KV cache are reserved and never used",
            wasted / float(memory.total),
            {"allocation": f"{settings.kv_reserved or settings.kv_block} tokens at a time"},
            of="memory",
        )
        yield Hint(("KV allocation",), f"{si(wasted, 'B')} of KV cache are reserved and never used")
        return
    left = float(memory.headroom)
    state = f"{si(left, 'B')} of memory are free" if left > 0 else "the memory shortfall has other causes"
    yield NoBenefit(
        ("KV allocation",),
        f"allocation wastes {si(wasted, 'B')} of {si(float(memory.kv_cache), 'B')} of KV cache and {state}: finer"
        " allocation admits no more sequences",
    )


@rule("Output length predictors have errors: expect less than a perfect prediction gains.", "zhou 33")
def length_prediction(case: Case) -> Iterator[Finding]:
    """Applies where reserving memory for predicted lengths is offered and helps."""
    offered = case.moves.get("s3")
    trial = None if offered is None else case.trials.attempt([offered])
    if trial is None or (len(trial.missed) >= len(case.base.missed) and case.gain("s3") <= HELPS):
        return
    missed = case.technique(OVERPREDICTED)
    if missed is None:
        return
    exact, twice = (float(found.analysis.memory.total) for found in (trial, missed))
    fits = "fits" if missed.used["capacity"] <= 1 else "does not fit"
    yield Caution(
        f"exact lengths are assumed: with a prediction twice too long the memory is {twice / 1e9:.3g} GB instead of"
        f" {exact / 1e9:.3g} GB and {fits}",
        ("s3",),
    )


@rule("Free memory is room for more sequences, which share the weights that a step reads.", "yuan R15")
def unused_memory(case: Case) -> Iterator[Finding]:
    """Applies where the batch may vary, a larger one fits, and a fifth of the memory is free."""
    memory = case.analysis.memory
    left = float(memory.headroom) / float(memory.budget)
    if not case.goal.batch_varies or left < UNUSED or case.max_batch == case.batch:
        return
    yield Bottleneck(
        f"{si(float(memory.headroom), 'B')} of {si(float(memory.budget), 'B')} are free: a batch of {case.max_batch}"
        f" fits, the present one is {case.batch}",
        left,
        {"KV cache": si(float(memory.kv_cache), "B"), "weights": si(float(memory.weights), "B")},
        of="memory",
    )
    yield Hint(("batch",), f"{left:.0%} of the memory is free, room for a batch of {case.max_batch}")


@rule(
    "Beyond the number of KV heads tensor parallelism replicates the KV cache: split the batch or the sequence.",
    "yuan R24, miao D5",
)
def kv_heads(case: Case) -> Iterator[Finding]:
    """Applies where the tensor-parallel degree exceeds the KV heads, now or after a move of the same devices."""
    heads, parallel = _divisible_heads(case), case.analysis.parallel
    if not heads or not case.generates:
        return
    degrees = {
        move.name: trial.analysis.parallel.tensor
        for move, trial in case.offered(Kind.PARALLELISM)
        if trial.analysis.parallel.devices == parallel.devices
    }
    shared = "all query heads share one cache" if heads == 1 else f"there are {heads} KV heads"
    unit = "one device" if heads == 1 else f"{heads} tensor-parallel devices"
    if beyond := tuple(name for name, tensor in degrees.items() if tensor > max(heads, parallel.tensor)):
        yield Caution(
            f"KV cache per device stops shrinking beyond {unit}: {shared}, and other devices hold copies", beyond
        )
    if parallel.tensor <= heads:
        return
    try:
        now, before = (
            kv_bytes_per_token(case.model, case.precision, Parallelism(tensor=tensor, pipeline=parallel.pipeline))
            for tensor in (parallel.tensor, heads)
        )
    except RooflineError:
        return
    if now < before:
        return
    copies, memory = parallel.tensor // heads, case.analysis.memory
    yield Bottleneck(
        f"{shared}, and {parallel.tensor} tensor-parallel devices hold {copies} copies:"
        f" {si(now, 'B')} per token on each, as on {unit}",
        float(memory.kv_cache / memory.total) * (1 - heads / parallel.tensor),
        {"KV cache per device": si(float(memory.kv_cache), "B"), "copies": f"{copies}"},
        of="memory",
    )
    fewer = tuple(name for name, tensor in degrees.items() if tensor <= heads)
    yield Hint(
        (*fewer, "sequence parallelism", "KV format"),
        f"{shared}, replicated {copies} times: data or sequence parallelism splits the KV cache, more tensor"
        " parallelism does not",
    )


def _divisible_heads(case: Case) -> int:
    """KV heads that tensor parallelism can divide: 1 with MLA, 0 without attention."""
    if case.model.uses_mla:
        return 1
    return max((attention.kv_heads for attention in case.model.attentions), default=0)
