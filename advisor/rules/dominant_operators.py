"""Attention and linear layers take most of the time; attention more of it with context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Rule, Said
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze

DOMINANT = 0.75
"""The share of the time above which they are said to dominate (Zhou et al. 2024, section 6.1.1)."""

MIXING = ("attention", "softmax", "scan", "delta_rule")
"""Kinds of operators that mix tokens."""


def look(case: Case) -> Iterator[Said]:
    """Applies where attention and linear layers take more than three quarters of the expected time."""
    linear, attention = case.spent("gemm", "moe"), case.spent(*MIXING)
    if linear + attention <= DOMINANT:
        return
    evidence = {"linear layers": f"{linear:.0%}", "attention": f"{attention:.0%}"}
    if case.generates:
        evidence |= _growth(case)
    yield Finding(
        f"linear layers take {linear:.0%} and attention {attention:.0%} of the time: what helps must help them",
        linear + attention,
        evidence,
    )


def _growth(case: Case) -> dict[str, str]:
    """Attention's share of a decode step's bound time now and at the model's longest context."""
    now, longest = int(case.scenario.decode_context), case.model.max_context or 0
    if longest <= now:
        return {}
    try:
        decode = analyze(case.trials.request.scenario(context=np.array([now, longest]))).decode
    except RooflineError:
        return {}
    assert decode is not None
    shares = [op.share for op in decode.ops if op.kind in MIXING]
    before, after = np.sum(shares, axis=0) if shares else (0.0, 0.0)
    return {f"attention's share of a decode step at {now} and {longest} tokens": f"{before:.1%} and {after:.0%}"}


RULE = Rule(
    "dominant-operators",
    "Attention and linear layers take most of the time: optimise them first, attention the more with context.",
    ("zhou 18",),
    look,
)
