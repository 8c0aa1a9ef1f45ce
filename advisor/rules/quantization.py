"""Rules about quantization of weights and activations: where it saves time, and what it costs in quality."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.formats import Formats
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.goal import Price
from roofline.bound.roof import Bound
from roofline.core.units import count_text, si

UNQUANTIZED = 16
"""Bits of an unquantized weight."""

TWO_BITS, THREE_BITS, FOUR_BITS = 2.5, 3.5, 5.0
"""Largest effective bits of nominal two-, three- and four-bit weights, scales included."""

LONG_CONTEXT = 8192
"""Tokens from which a context counts as long."""


@rule(
    "Weight-only quantization helps below the crossover of ridge point times bytes per weight over two tokens, at"
    " most by the ratio of bits, and less with larger batches, longer contexts and smaller models.",
    "yuan R4, yuan R26, zhou 3, zhou 5, zhou 6",
)
def weight_only(case: Case) -> Iterator[Finding]:
    """Applies to decode: a gain below the crossover, none above."""
    gemm, formats = case.decode_gemm, case.formats
    if gemm is None or formats is None or case.decode_stake < NEGLIGIBLE:
        return
    if not gemm.memory_bound:
        if case.weight_only:
            yield NoBenefit(
                tuple(case.weight_only),
                f"{gemm.sharing} in a decode step, beyond the crossover at {count_text(gemm.crossover)} tokens: its"
                " GEMMs stay compute-bound with fewer bits",
            )
        return
    read = case.bytes_share(case.decode, "weight")
    for name, after in case.weight_only.items():
        ratio = formats.weights.bits / after.weights.bits
        text = (
            f"{gemm.sharing}, and GEMMs are memory-bound up to {count_text(gemm.crossover)} tokens; weights are"
            f" {read:.0%} of a step's bytes and shrink {ratio:.3g} times, the upper bound of the gain"
        )
        if gemm.rows >= gemm.crossover_at(after.weights.bits):
            text += f"; at so few bits GEMMs become compute-bound and gain less than {ratio:.3g} times"
        yield Hint((name,), text)


@rule(
    "Stop lowering weight bits where the linear layers become compute-bound: fewer bits save no time at large batches.",
    "yuan R5",
)
def weight_bits_saturation(case: Case) -> Iterator[Finding]:
    """Applies to moves below the bits at which the GEMMs of a decode step are compute-bound."""
    gemm = case.decode_gemm
    if gemm is None or case.decode_stake < NEGLIGIBLE:
        return
    saturation = gemm.saturation_bits
    below = tuple(name for name, after in case.weight_only.items() if after.weights.bits < saturation)
    if not below or (saturation >= gemm.bits >= UNQUANTIZED):  # the latter is covered by weight-only
        return
    where = (
        "are compute-bound already"
        if saturation >= gemm.bits
        else f"become compute-bound at {saturation:.3g} bits per weight"
    )
    text = (
        f"{gemm.sharing}, so the GEMMs of a decode step {where}: fewer bits save memory but no more time at the bound"
    )
    yield Caution(text, below)
    yield NoBenefit(below, text)


@rule(
    "A low-precision peak needs all operands in that precision and hardware that has it; uniform formats are simpler,"
    " and fewer bits may also be slower.",
    "yuan R6, yuan R27, zhou 9, miao D10",
)
def low_precision_peak(case: Case) -> Iterator[Finding]:
    """Applies to operands narrower than the arithmetic they are multiplied in, before and after moves."""
    formats = case.formats
    if formats is None:
        return
    share = case.prefill_share * case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if case.generates:
        share += case.decode_share * case.bound_share(case.decode, Bound.COMPUTE)
    if formats.mixed and share >= NEGLIGIBLE:
        why = "the device has no narrower arithmetic" if formats.unsupported else "both operands have to be narrow"
        yield Bottleneck(
            f"weights of {formats.weights.bits:.3g} bits meet inputs of {formats.inputs.bits:.3g} bits and are"
            f" multiplied in {formats.arithmetic}, with a peak of {si(formats.peak, 'FLOP/s')}: {why}",
            share,
            {"arithmetic of the device": ", ".join(case.hardware.formats)},
        )
        yield Hint(tuple(case.faster_arithmetic), "all operands in fewer bits have a higher compute peak")
    for name, after in case.formats_after.items():
        yield from _of_move(case, name, formats, after)


def _of_move(case: Case, name: str, before: Formats, after: Formats) -> Iterator[Finding]:
    if "code" in (after.weights.arithmetic, after.kv.arithmetic):
        yield Caution("its format is a codebook and needs a lookup-table kernel", (name,))
    if after.weights == before.weights and after.inputs == before.inputs:
        return
    if after.unsupported:
        text = (
            f"{case.hardware.title} has no arithmetic this narrow: GEMMs run in {after.arithmetic}, so the narrower"
            " operands save bytes but no compute"
        )
        yield Caution(text, (name,))
        yield NoBenefit((name,), text)
    if case.fits and (gain := case.gain(name)) < 1:
        yield NoBenefit(
            (name,), f"weights or activations are converted in every pass, and the simulated gain is {gain:.3g} times"
        )


@rule(
    "Four bits per weight usually balance size and quality; two and fewer need special methods, and long contexts and"
    " emergent abilities degrade first.",
    "yuan R9, zhou 7, zhou 8",
)
def weight_bits_quality(case: Case) -> Iterator[Finding]:
    """Applies to moves that quantize weights."""
    longest = int(case.scenario.first_cached + case.scenario.generate)
    for name, after in case.formats_after.items():
        move, bits = case.moves[name], after.weights.bits
        if move.slot != "weight format" or case.formats is None or bits >= case.formats.weights.bits:
            continue
        if bits <= TWO_BITS:
            yield Caution(f"{bits:.3g} bits per weight keep quality only with methods designed for that", (name,))
        elif bits <= THREE_BITS:
            yield Caution(
                f"{bits:.3g} bits per weight are below the four that usually balance size and quality", (name,)
            )
        elif bits <= FOUR_BITS:
            yield Hint((name,), f"{bits:.3g} bits per weight are near four, the usual balance of size and quality")
        if move.price in (Price.CALIBRATION, Price.LOSSY):
            yield Hint((name,), "post-training quantization: no training, minutes to hours of calibration")
        if bits <= FOUR_BITS:
            yield Caution("multi-step reasoning may degrade: evaluate it on your own tasks", (name,))
            if longest >= LONG_CONTEXT:
                yield Caution(f"quantized models may lose most quality at contexts of {longest} tokens", (name,))
