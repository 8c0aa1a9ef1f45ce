"""Rules about prefill and decode, their operators, launches by the CPU, fusion, and the choice of engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.formats import largest_gemm
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import better
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.scenario.analysis import analyze
from roofline.scenario.breakdown import HOST

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


@rule
def dominant_phase(case: Case, told: Told) -> Iterator[Finding]:
    """Names the dominant phase of models that decode."""
    if not case.generates:
        return
    decode = case.decode_share
    name, share = ("decode", decode) if decode >= 0.5 else ("prefill", 1 - decode)
    text = f"{name} takes {share:.0%} of the time"
    if share < DOMINANT_PHASE:
        text = f"prefill takes {1 - decode:.0%} of the time and decode {decode:.0%}: both matter"
    yield from told("times", share, text=text, expected=case.analysis.expected)


@rule
def memory_bound_decode(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where most of a decode step's time is memory-bound."""
    if not case.generates or (share := case.bound_share(case.decode, Bound.MEMORY)) < 0.5:
        return
    gemm, evidence = case.decode_gemm, dict[str, str]()
    weights, cache = (case.bytes_share(case.decode, role) for role in ("weight", "kv"))
    if gemm is not None:
        evidence["intensity"] = f"{gemm.figures.intensity:.3g} FLOP/byte in {gemm.name}"
        evidence["ridge point"] = f"{gemm.ridge:.3g} FLOP/byte"
    evidence |= {"bytes of weights": f"{weights:.0%}", "bytes of KV cache": f"{cache:.0%}"}
    yield from told("bound", case.decode_share * share, evidence=evidence, share=share)
    if case.decode_stake < NEGLIGIBLE:
        return
    moves = ["speculative decoding", "residual-norm-fusion", "qkv-fusion", "batch"]
    moves += ["weight format"] if gemm is not None and gemm.memory_bound else []
    moves += ["KV format"] if cache >= NEGLIGIBLE else []
    yield from told("bytes", moves=tuple(moves), weights=weights, cache=cache)


@rule
def compute_bound_prefill(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where most of the time of prefill is compute-bound."""
    gemm, formats = largest_gemm(case.analysis.prefill), case.formats
    share = case.bound_share(case.analysis.prefill, Bound.COMPUTE)
    if share < 0.5 or gemm is None or formats is None:
        return
    evidence = {**gemm.evidence, "peak": f"{si(formats.peak, 'FLOP/s')} in {formats.arithmetic}"}
    yield from told("bound", case.prefill_share * share, evidence=evidence, share=share)
    before = float(case.base.figure("ttft"))
    for name, trial in case.trials_of("weight format"):  # weight-only formats are dequantized
        if name in case.weight_only and (slower := float(trial.figure("ttft"))) > SLOWER_PREFILL * before:
            yield from told("slower", moves=(name,), after=slower, before=before)
    if case.prefill_stake < NEGLIGIBLE or gemm.memory_bound:
        return
    for key, moves in (("faster", case.faster_arithmetic), ("no faster", case.weight_only)):
        for name, after in moves.items():
            yield from told(key, moves=(name,), gemm=gemm, formats=formats, after=after)


@rule
def decode_gemv(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where GEMMs of few rows are memory-bound and take a quarter of a decode step."""
    gemm = case.decode_gemm
    if gemm is None or not gemm.memory_bound:
        return
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
    shape, highest = f"{rows:.3g} activation row{'s' if rows > 1 else ''}", 1 / (1 - whole * (1 - reached))
    yield from told("few", whole, gemm=gemm, shape=shape, reached=reached, highest=highest)


@rule
def dominant_operators(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where attention and linear layers take more than three quarters of the expected time."""
    linear, attention = case.kind_share("gemm", "moe"), case.kind_share(*SEQUENCE_MIXING)
    if linear + attention > DOMINANT_OPERATORS:
        growth = _attention_growth(case) if case.generates else {}
        yield from told("most", linear + attention, evidence=growth, linear=linear, attention=attention)


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


LAUNCH_BOUND = 0.2
"""Host share of a decode step from which it counts as launch-bound."""

FUSION_SLOTS = ("norm kernel", "QKV projection", "MLP kernel", "layer kernel")
LIGHT_KINDS = ("norm", "activation", "elementwise", "rope", "softmax")
LIGHT_SHARE = 0.05
"""Share of the time from which light operators are reported."""

FUSED = ("qkv", "gate_up", "residual_norm", "reduced_norm")
"""Fusions of light operators and of projections."""


@rule
def launch_bound(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where no kernel runs in a fifth of a decode step."""
    if not case.generates:
        return
    graphs = "decode" in case.scenario.profile.graphs
    if graphs:
        yield from told("graphs")
    if case.host_share >= LAUNCH_BOUND:
        weight, idle = case.decode_share * case.host_share, case.host_share * case.decode_breakdown.total
        moves = ("launch", "engine", "batch", "speculative decoding", *FUSION_SLOTS)
        yield from told("bound", weight, moves, idle=idle, graphs="yes" if graphs else "no")


@rule
def fusion(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where light operators take time or the engine fuses nothing."""
    light, host = case.kind_share(*LIGHT_KINDS), case.kind_share(HOST)
    done = ", ".join(name.replace("_", " and ") for name in case.scenario.profile.fusions if name in FUSED)
    facts = {"light": light, "host": host, "done": done or "nothing"}
    if light >= LIGHT_SHARE:
        yield from told("light", light, **facts)
    yield from told("more" if light >= LIGHT_SHARE or not done else "done", moves=FUSION_SLOTS, **facts)


@rule
def engine_choice(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where other engines are offered: which are certainly better, and whether TTFT and TPOT disagree."""
    engines = case.offered(Kind.ENGINE)
    if not engines or case.goal.at == "bound":
        return
    gains = {move.name: better(case.base, trial) for move, trial in engines}
    uncertain = tuple(name for name, gain in gains.items() if gain.low < 1 < gain.high)
    if uncertain:
        low, high = min(gains[name].low for name in uncertain), max(gains[name].high for name in uncertain)
        yield from told("uncertain", moves=uncertain, low=low, high=high)
    for name, gain in gains.items():
        if gain.low > 1:
            yield from told("certain", moves=(name,), gain=gain)
    if not case.generates:
        return
    trials = {"the present engine": case.base, **{move.name: trial for move, trial in engines}}
    ttft, tpot = (min(trials, key=lambda name: float(trials[name].figure(figure))) for figure in ("ttft", "tpot"))
    if ttft != tpot:
        yield from told("disagree", moves=tuple(gains), ttft=ttft, tpot=tpot)
