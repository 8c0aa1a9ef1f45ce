"""Decode that waits for its host: launches, scheduling and sampling take longer than they should."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.core.units import seconds

NOTICED = 0.2
"""The share of a decode step from which it is called launch-bound."""


def look(case: Case) -> Iterator[Said]:
    """Applies where no kernel runs in a fifth of a decode step or more."""
    if not case.generates:
        return
    engine, share = case.scenario.profile, case.host_share
    title = engine.title or engine.name
    replayed = "decode" in engine.graphs
    if replayed:
        yield Vain(("launch",), f"{title} replays CUDA graphs in decode already")
    if share < NOTICED:
        return
    yield Finding(
        f"decode waits for its host: no kernel runs in {seconds(share * case.decode_parts.total)} of a step",
        case.decode_share * share,
        {
            "share of a decode step": f"{share:.0%}",
            "engine": title,
            "CUDA graphs in decode": "replayed" if replayed else "none",
        },
    )
    yield Hint(
        ("launch", "engine", "batch", "drafting", "norm kernel", "QKV projection", "MLP kernel", "layer kernel"),
        f"the host takes {share:.0%} of a decode step, whatever the kernels do: fewer launches, or more tokens a step",
    )


RULE = Rule(
    "launch-bound",
    "Decode of small models waits for launches and the host: CUDA graphs, fusion, larger batches, another engine.",
    ("zhou 21",),
    look,
)
