"""Fusion: light operators cost memory traffic and launches, which one kernel for several spares."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.scenario.breakdown import HOST

FUSIONS = ("norm kernel", "QKV projection", "MLP kernel", "layer kernel")
LIGHT = ("norm", "activation", "elementwise", "rope", "softmax")
NOTICED = 0.05
"""The share of the time from which light operators are worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies where light operators and gaps between kernels take time that the engine's own fusions leave."""
    light, host = case.spent(*LIGHT), case.spent(HOST)
    engine = case.scenario.profile
    done = [name.replace("_", " and ") for name in engine.fusions if name in ("qkv", "gate_up", "residual_norm")]
    if light >= NOTICED:
        yield Finding(
            f"norms, activations and additions take {light:.0%} of the time for hardly any FLOP",
            light,
            {"host and gaps": f"{host:.0%}", "fused by the engine": ", ".join(done) or "nothing"},
        )
    if light >= NOTICED or not done:
        yield Hint(
            FUSIONS,
            f"light operators take {light:.0%} of the time and gaps around kernels {host:.0%}: one kernel for several"
            " spares their traffic and launches",
        )
    else:
        yield Vain(
            FUSIONS,
            f"light operators take {light:.1%} of the time, and {engine.title or engine.name} fuses {', '.join(done)}",
        )


RULE = Rule(
    "fusion",
    "Fuse light operators and the projections of one input: less memory traffic, fewer launches.",
    ("zhou 21", "miao D18"),
    look,
)
