"""Rules about prefill and decode: which dominates, what bounds it, and which operators take the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.formats import largest_gemm
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import count_text, seconds, si
from roofline.scenario.analysis import analyze

DOMINANT_PHASE = 2 / 3
"""Share of the total time from which one phase alone is named."""

DOMINANT_OPERATORS = 0.75
"""Share of the time above which attention and linear layers are said to dominate (Zhou et al. 2024, section 6.1.1)."""

SEQUENCE_MIXING = ("attention", "softmax", "scan", "gated_delta_rule")
"""Kinds of operators that read other tokens."""

GEMV_ROWS = 16
"""Most activation rows of a GEMV-like GEMM: those of the smallest tensor core tile (mma m16n8k16)."""

GEMV_SHARE = 0.25
"""Share of a decode step from which GEMV kernels are reported."""

SLOWER_PREFILL = 1.01
"""Ratio of TTFT after a move to that before from which it is reported."""


@rule(
    "Prefill runs once and decode runs for every token: analyze them separately and work on the longer one.",
    "yuan R3, miao D1",
)
def dominant_phase(case: Case) -> Iterator[Finding]:
    """Names the dominant phase of models that decode."""
    if not case.generates:
        return
    decode = case.decode_share
    name, share = ("decode", decode) if decode >= 0.5 else ("prefill", 1 - decode)
    text = f"{name} takes {share:.0%} of the time"
    if share < DOMINANT_PHASE:
        text = f"prefill takes {1 - decode:.0%} of the time and decode {decode:.0%}: both matter"
    expected = case.analysis.expected
    assert expected.tpot is not None
    yield Bottleneck(
        text,
        share,
        {
            "TTFT": seconds(float(expected.ttft.mid)),
            "TPOT": seconds(float(expected.tpot.mid)),
            "tokens": f"{int(case.scenario.prompt_tokens)} input, {int(case.scenario.generate)} output",
        },
    )


@rule(
    "Below the ridge point only fewer bytes help: quantize, fuse kernels, or batch more sequences per weight read.",
    "yuan R1, yuan R15, zhou 1, miao D2",
)
def memory_bound_decode(case: Case) -> Iterator[Finding]:
    """Applies where most of a decode step's bound time is memory-bound."""
    if not case.generates or (share := case.bound_share(case.decode, Bound.MEMORY)) < 0.5:
        return
    gemm = case.decode_gemm
    weights, cache = (case.bytes_share(case.decode, role) for role in ("weight", "kv"))
    evidence = (
        {}
        if gemm is None
        else {
            "intensity": f"{gemm.figures.intensity:.3g} FLOP/byte in {gemm.name}",
            "ridge point": f"{gemm.ridge:.3g} FLOP/byte",
        }
    )
    yield Bottleneck(
        f"decode is memory-bound for {share:.0%} of its bound time and takes {case.decode_share:.0%} of the total",
        case.decode_share * share,
        {**evidence, "bytes of weights": f"{weights:.0%}", "bytes of KV cache": f"{cache:.0%}"},
    )
    if case.decode_stake < NEGLIGIBLE:
        return
    names = ["speculative decoding", "residual-norm-fusion", "qkv-fusion", "batch"]
    if gemm is not None and gemm.memory_bound:
        names.append("weight format")
    if cache >= NEGLIGIBLE:
        names.append("KV format")
    yield Hint(tuple(names), f"decode is memory-bound: its bytes are {weights:.0%} weights and {cache:.0%} KV cache")


@rule(
    "Above the ridge point only faster arithmetic helps: quantize weights and activations, not weights alone.",
    "yuan R2, zhou 2, zhou 4",
)
def compute_bound_prefill(case: Case) -> Iterator[Finding]:
    """Applies where most of the bound time of prefill is compute-bound."""
    gemm, formats = largest_gemm(case.analysis.prefill), case.formats
    share = case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if share < 0.5 or gemm is None or formats is None:
        return
    peak = f"{si(formats.peak, 'FLOP/s')} in {formats.arithmetic}"
    yield Bottleneck(
        f"prefill is compute-bound for {share:.0%} of its bound time and takes {case.prefill_share:.0%} of the total",
        case.prefill_share * share,
        {**gemm.evidence, "peak": peak},
    )
    yield from _slower_prefill(case)
    if case.prefill_stake < NEGLIGIBLE or gemm.memory_bound:
        return
    for name, after in case.faster_arithmetic.items():
        yield Hint(
            (name,),
            f"prefill is compute-bound, and quantized weights and activations raise the peak of its GEMMs to"
            f" {si(after.peak, 'FLOP/s')} in {after.arithmetic} from {si(formats.peak, 'FLOP/s')}",
        )
    for name, after in case.weight_only.items():
        yield NoBenefit(
            (name,),
            f"prefill is compute-bound, {count_text(gemm.figures.intensity)} FLOP/byte against a ridge point of"
            f" {count_text(gemm.ridge)}, and its GEMMs still run in {after.arithmetic}, which is no faster",
        )


def _slower_prefill(case: Case) -> Iterator[Finding]:
    """Weight-only formats whose dequantization raises TTFT."""
    before = float(case.base.figure("ttft"))
    for name, trial in case.trials_of("weight format"):
        if name in case.weight_only and (after := float(trial.figure("ttft"))) > SLOWER_PREFILL * before:
            yield Caution(
                f"prefill gets slower, {seconds(after)} instead of {seconds(before)}: it is compute-bound and has to"
                " dequantize the weights to 16 bits",
                (name,),
            )


@rule("Decode of few sequences is GEMV: use kernels made for that shape, or batch more rows.", "zhou 20, miao D16")
def decode_gemv(case: Case) -> Iterator[Finding]:
    """Applies where GEMMs of few rows are memory-bound and take a quarter of a decode step."""
    gemm = case.decode_gemm
    if gemm is None or not gemm.memory_bound:
        return
    intensity = gemm.figures.intensity
    rows = max(float(run.step.batch) * float(run.step.queries) for run in case.decode.passes)
    pairs = [
        (op, expected)
        for op, expected in zip(case.decode.ops, case.decode.expected_ops, strict=True)
        if op.kind == "gemm" and op.weight_bytes > 0
    ]
    time = sum(float(op.count * expected.time.mid) for op, expected in pairs)
    share = time / float(case.decode.expected.mid)
    if rows > GEMV_ROWS or share < GEMV_SHARE:
        return
    reached = sum(float(op.count * op.bound_time) for op, _ in pairs) / time
    whole = case.decode_share * share
    shape = f"{rows:.3g} activation row{'s' if rows > 1 else ''}"
    yield Bottleneck(
        f"decode runs GEMMs with {shape} at {intensity:.3g} FLOP/byte: kernels reach {reached:.0%} of the bandwidth"
        " bound",
        whole,
        {
            "ridge point": f"{gemm.ridge:.3g} FLOP/byte",
            "highest gain of ideal GEMV kernels": f"{1 / (1 - whole * (1 - reached)):.3g} times",
        },
    )
    yield Hint(
        ("weight format", "speculative decoding", "batch", "decode attention kernel", "engine"),
        f"GEMMs with {shape} do {intensity:.3g} FLOP/byte: reduce bytes, add rows, or use GEMV kernels",
    )


@rule(
    "Attention and linear layers take most of the time: optimize them first, and attention the more the longer the"
    " context.",
    "zhou 18",
)
def dominant_operators(case: Case) -> Iterator[Finding]:
    """Applies where attention and linear layers take more than three quarters of the expected time."""
    linear, attention = case.kind_share("gemm", "moe"), case.kind_share(*SEQUENCE_MIXING)
    if linear + attention <= DOMINANT_OPERATORS:
        return
    evidence = {"linear layers": f"{linear:.0%}", "attention": f"{attention:.0%}"}
    if case.generates:
        evidence |= _attention_growth(case)
    yield Bottleneck(
        f"linear layers take {linear:.0%} and attention {attention:.0%} of the time", linear + attention, evidence
    )


def _attention_growth(case: Case) -> dict[str, str]:
    """Attention's share of a decode step's bound time now and at the model's maximum context."""
    now, longest = int(case.scenario.decode_context), case.model.max_context or 0
    if longest <= now:
        return {}
    try:
        decode = analyze(case.trials.scenario.at(context=np.array([now, longest]))).decode
    except RooflineError:
        return {}
    assert decode is not None
    shares = [op.share for op in decode.ops if op.kind in SEQUENCE_MIXING]
    before, after = np.sum(shares, axis=0) if shares else (0.0, 0.0)
    return {f"attention's share of a decode step at {now} and {longest} tokens": f"{before:.1%} and {after:.0%}"}
