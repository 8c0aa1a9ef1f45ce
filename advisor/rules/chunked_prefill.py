"""Long prompts hold up the decode steps of others."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Rule, Said
from roofline.core.units import seconds

STEPS = 10
"""Decode steps that the prefill of one prompt has to take for it to be told."""

SLOWER = 1.005
"""How many times longer the first token has to take for it to be told."""


def look(case: Case) -> Iterator[Said]:
    """Applies where several sequences run together and the prompt of one takes as long as many decode steps."""
    expected = case.analysis.expected
    if not case.generates or expected.tpot is None or case.batch < 2 or case.scenario.settings.chunk is not None:
        return
    prompt, step = float(expected.ttft.mid) / case.batch, float(expected.tpot.mid)
    if prompt < STEPS * step:
        return
    yield Finding(
        f"a prompt that joins holds up the tokens of all others for {seconds(prompt)}, {prompt / step:.0f} decode steps"
        " of themselves: prefilled in chunks it lets steps run between",
        0.0,
        {"prefill of one prompt": seconds(prompt), "decode step": seconds(step)},
    )
    for name, trial in case.trials_of("prefill schedule"):
        slower = float(trial.analysis.expected.ttft.mid / expected.ttft.mid)
        if slower < SLOWER:
            continue
        yield Caution(
            f"every chunk reads weights and earlier cache again: the first token takes {slower:.3g} times as long; what"
            " it buys, steadier steps for others, is no part of one batch's figures",
            (name,),
        )


RULE = Rule(
    "chunked-prefill",
    "Where long prompts and decode steps of others share a device, prefill in chunks keeps the steps steady.",
    ("yuan R19",),
    look,
)
