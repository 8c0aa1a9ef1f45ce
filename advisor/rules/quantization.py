"""Rules about quantization of weights and activations: where it saves time, and what it costs in quality."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.formats import Formats
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.goal import Price
from roofline.bound.roof import Bound

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
    saturation = gemm.saturation_bits
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
        yield from _of_move(case, told, name, formats, after)


def _of_move(case: Case, told: Told, name: str, before: Formats, after: Formats) -> Iterator[Finding]:
    if "code" in (after.weights.arithmetic, after.kv.arithmetic):
        yield from told("codebook", moves=(name,))
    if after.weights == before.weights and after.inputs == before.inputs:
        return
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
