"""Rules about the CPU, launches, fusion and the choice of engine."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.moves import Kind
from roofline.advisor.search.trials import better
from roofline.scenario.breakdown import HOST

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
