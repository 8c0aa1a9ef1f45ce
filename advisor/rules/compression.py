"""Rules about fewer bits, and about smaller models and shorter passes."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Quality
from roofline.advisor.search.moves import Kind
from roofline.bound.roof import Bound
from roofline.techniques.base import Price

HALF_THE_LAYERS = "layer-pruning:share=0.5"

SHARED_EXIT = ("skipdecode",)
"""Early-exit techniques in which all sequences of a batch exit at the same layer."""

PARALLEL_OUTPUT = ("skeleton-of-thought", "sgd", "apar")
"""Moves that generate parts of an answer in parallel."""

LONG_PHASE = 0.25
"""Share of the total time from which a phase is worth shortening."""

QUALITY_PRESERVING = (Price.LOSSLESS, Price.ENGINEERING)

PRUNED = {
    "n-m-sparsity": "sparse tensor cores skip the N:M zeros",
    "flash-llm": "a special kernel stores only the nonzeros",
}
"""Why a pruned model is faster, where that is not because its matrices are smaller."""


@rule
def low_rank(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where decode is memory-bound and reads mostly weights."""
    if not case.generates:
        return
    weights = case.bytes_share(case.decode, "weight")
    if weights < 0.5:
        yield from told("cache", weights=weights)
        return
    if case.bound_share(case.decode, Bound.MEMORY) < 0.5:
        yield from told("computes")
        return
    yield from told("reads", weights=weights)
    gains = {move.slot: case.gain(move.name) for move in case.best if case.fits}
    if HELPS < gains.get("rank", 0.0) < gains.get("weight format", 0.0):
        yield from told("bits", rank=gains["rank"], bits=gains["weight format"])


@rule
def sparsity(case: Case, told: Told) -> Iterator[Finding]:
    """Compares what a pruned model still reads and multiplies."""
    before = case.analysis.prefill
    for name, trial in case.placed_of("weight sparsity", "model size"):
        after = trial.analysis.prefill
        fewer_bytes = float(after.bytes) < float(before.bytes)
        fewer_flops = float(after.flops) < float(before.flops) or after.bound_time < before.bound_time
        reason = PRUNED.get(name, "the matrices become smaller for any kernel")
        yield from told("pruned" if fewer_bytes or fewer_flops else "dense", moves=(name,), reason=reason)


@rule
def distillation(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where retraining is allowed and a model of half the layers gains when simulated."""
    if case.goal.quality is not Quality.RETRAIN or case.model.layers < 2 or not case.fits:
        return
    student = case.technique(HALF_THE_LAYERS)
    if student is None or (ratio := float(case.goal.gain(case.base.value, student.value))) <= HELPS:
        return
    for key in ("smaller", "other"):
        yield from told(key, layers=student.analysis.scenario.model.layers, ratio=ratio)


@rule
def early_exit(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to techniques that skip layers in decode."""
    for name, trial in case.placed_of("depth") if case.generates else ():
        together = name.partition(":")[0] in SHARED_EXIT
        key = "together" if together else "alone" if case.batch == 1 else "apart"
        yield from told(key, moves=(name,), depth=trial.analysis.scenario.settings.depth)


@rule
def input_compression(case: Case, told: Told) -> Iterator[Finding]:
    """Prompt compression applies where prefill takes time, parallel output where decode does and is memory-bound."""
    yield from told("long" if case.prefill_share >= LONG_PHASE else "short", prompt=int(case.scenario.prompt))
    if case.generates:
        bound = case.bound_share(case.decode, Bound.MEMORY)
        key = "little" if case.decode_share < LONG_PHASE else "reads" if bound >= 0.5 else "computes"
        yield from told(key, moves=PARALLEL_OUTPUT, bound=bound)


@rule
def lossless_first(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where some move that helps preserves the output."""
    tried = [(move.name, trial) for move, trial in case.offered(Kind.TECHNIQUE)]
    gains = {name: case.gain(name) for name, _ in tried}
    preserving = [
        name for name, trial in tried if trial.price in QUALITY_PRESERVING and gains[name] > HELPS and not trial.missed
    ]
    if not preserving:
        return
    best = max(preserving, key=lambda name: (gains[name], name))
    yield from told("preserving", moves=tuple(preserving))
    for name, trial in tried:
        if case.fits and trial.price not in QUALITY_PRESERVING and HELPS < gains[name] <= gains[best]:
            yield from told("better", moves=(name,), best=best, most=gains[best], gain=gains[name])


UNQUANTIZED = 16
"""Bits of an unquantized weight."""

TWO_BITS, THREE_BITS, FOUR_BITS = 2.5, 3.5, 5.0
"""Largest effective bits of nominal two-, three- and four-bit weights, scales included."""

LONG_CONTEXT = 8192
"""Tokens from which a context counts as long."""


@rule
def weight_only(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to decode: a gain below the crossover, none above."""
    gemm, formats = case.decode_gemm, case.formats
    if gemm is None or formats is None or case.decode_stake < NEGLIGIBLE:
        return
    if not gemm.memory_bound:
        if case.weight_only:
            yield from told("computes", moves=tuple(case.weight_only), gemm=gemm)
        return
    read = case.bytes_share(case.decode, "weight")
    for name, after in case.weight_only.items():
        ratio, less = formats.weights.bits / after.weights.bits, ""
        if gemm.rows >= gemm.crossover_at(after.weights.bits):
            less = f"; at so few bits GEMMs become compute-bound and gain less than {ratio:.3g} times"
        yield from told("reads", moves=(name,), gemm=gemm, read=read, ratio=ratio, less=less)


@rule
def weight_bits_saturation(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to moves below the bits at which the GEMMs of a decode step are compute-bound."""
    gemm = case.decode_gemm
    if gemm is None or case.decode_stake < NEGLIGIBLE:
        return
    saturation = 16 * gemm.rows / gemm.ridge  # fewer bits save no time
    below = tuple(name for name, after in case.weight_only.items() if after.weights.bits < saturation)
    if not below or (saturation >= gemm.bits >= UNQUANTIZED):  # the latter is covered by weight-only
        return
    where = f"become compute-bound at {saturation:.3g} bits per weight"
    where = "are compute-bound already" if saturation >= gemm.bits else where
    yield from told("below", moves=below, gemm=gemm, where=where)


@rule
def low_precision_peak(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to operands narrower than the arithmetic they are multiplied in, before and after moves."""
    formats = case.formats
    if formats is None:
        return
    share = case.prefill_share * case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if case.generates:
        share += case.decode_share * case.bound_share(case.decode, Bound.COMPUTE)
    if formats.mixed and share >= NEGLIGIBLE:
        why = "the device has no narrower arithmetic" if formats.unsupported else "both operands have to be narrow"
        known = ", ".join(case.hardware.formats)
        yield from told("mixed", share, tuple(case.faster_arithmetic), formats=formats, why=why, known=known)
    for name, after in case.formats_after.items():
        if "code" in (after.weights.arithmetic, after.kv.arithmetic):
            yield from told("codebook", moves=(name,))
        if after.weights == formats.weights and after.inputs == formats.inputs:
            continue
        if after.unsupported:
            yield from told("widened", moves=(name,), after=after)
        if case.fits and (gain := case.gain(name)) < 1:
            yield from told("slower", moves=(name,), gain=gain)


@rule
def weight_bits_quality(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to moves that quantize weights."""
    longest = int(case.scenario.first_cached + case.scenario.generate)
    for name, after in case.formats_after.items():
        move, bits = case.moves[name], after.weights.bits
        if move.slot != "weight format" or case.formats is None or bits >= case.formats.weights.bits:
            continue
        few = bits <= FOUR_BITS
        keys = {
            "two": bits <= TWO_BITS,
            "three": TWO_BITS < bits <= THREE_BITS,
            "four": THREE_BITS < bits <= FOUR_BITS,
            "untrained": move.price in (Price.CALIBRATION, Price.LOSSY),
            "reasoning": few,
            "long": few and longest >= LONG_CONTEXT,
        }
        for key in (key for key, holds in keys.items() if holds):
            yield from told(key, moves=(name,), bits=bits, longest=longest)
