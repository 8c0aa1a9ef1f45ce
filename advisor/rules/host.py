"""Rules about the CPU, launches, fusion and the choice of engine."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import better
from roofline.core.units import seconds
from roofline.scenario.breakdown import HOST

LAUNCH_BOUND = 0.2
"""Host share of a decode step from which it counts as launch-bound."""

FUSION_SLOTS = ("norm kernel", "QKV projection", "MLP kernel", "layer kernel")
LIGHT_KINDS = ("norm", "activation", "elementwise", "rope", "softmax")
LIGHT_SHARE = 0.05
"""Share of the time from which light operators are reported."""


@rule("Decode of small models is launch-bound: CUDA graphs, fusion, larger batches, another engine.", "zhou 21")
def launch_bound(case: Case) -> Iterator[Finding]:
    """Applies where no kernel runs in a fifth of a decode step."""
    if not case.generates:
        return
    engine, share = case.scenario.profile, case.host_share
    title = engine.heading
    graphs = "decode" in engine.graphs
    if graphs:
        yield NoBenefit(("launch",), f"{title} uses CUDA graphs in decode already")
    if share < LAUNCH_BOUND:
        return
    yield Bottleneck(
        f"decode is launch-bound: no kernel runs in {seconds(share * case.decode_breakdown.total)} of a step",
        case.decode_share * share,
        {"share of a decode step": f"{share:.0%}", "engine": title, "CUDA graphs in decode": "yes" if graphs else "no"},
    )
    yield Hint(
        ("launch", "engine", "batch", "speculative decoding", *FUSION_SLOTS),
        f"host time is {share:.0%} of a decode step: use fewer launches or more tokens per step",
    )


@rule("Fuse light operators and projections of one input: less memory traffic, fewer launches.", "zhou 21, miao D18")
def fusion(case: Case) -> Iterator[Finding]:
    """Applies where light operators take time or the engine fuses nothing."""
    light, host = case.kind_share(*LIGHT_KINDS), case.kind_share(HOST)
    engine = case.scenario.profile
    done = [
        name.replace("_", " and ")
        for name in engine.fusions
        if name in ("qkv", "gate_up", "residual_norm", "reduced_norm")
    ]
    if light >= LIGHT_SHARE:
        yield Bottleneck(
            f"norms, activations and elementwise operators take {light:.0%} of the time with hardly any FLOPs",
            light,
            {"host time and gaps": f"{host:.0%}", "fused by the engine": ", ".join(done) or "nothing"},
        )
    if light >= LIGHT_SHARE or not done:
        yield Hint(
            FUSION_SLOTS,
            f"light operators take {light:.0%} of the time and gaps between kernels {host:.0%}: fusion saves their"
            " traffic and launches",
        )
    else:
        yield NoBenefit(
            FUSION_SLOTS, f"light operators take {light:.1%} of the time, and {engine.heading} fuses {', '.join(done)}"
        )


@rule(
    "No engine is best for everything: choose by objective, and measure where predictions overlap.", "zhou 30, miao D23"
)
def engine_choice(case: Case) -> Iterator[Finding]:
    """Applies where other engines are offered: which are certainly better, and whether TTFT and TPOT disagree."""
    engines = case.offered(Kind.ENGINE)
    if not engines or case.goal.at == "bound":
        return
    gains = {move.name: better(case.base, trial) for move, trial in engines}
    uncertain = tuple(name for name, gain in gains.items() if gain.low < 1 < gain.high)
    if uncertain:
        low, high = min(gains[name].low for name in uncertain), max(gains[name].high for name in uncertain)
        yield Caution(
            f"the engines' intervals overlap, {low:.2g} to {high:.2g} times as good: measure them on your own requests",
            uncertain,
        )
    for name, gain in gains.items():
        if gain.low > 1:
            yield Hint((name,), f"better over the whole 80% interval, {gain.low:.3g} to {gain.high:.3g} times")
    if not case.generates:
        return
    trials = {"the present engine": case.base, **{move.name: trial for move, trial in engines}}
    ttft, tpot = (min(trials, key=lambda name: float(trials[name].figure(figure))) for figure in ("ttft", "tpot"))
    if ttft != tpot:
        yield Caution(
            f"no engine is best for everything: lowest TTFT with {ttft}, lowest TPOT with {tpot}", tuple(gains)
        )
