"""Experts: who picks whom, how evenly they are loaded, and in how many kernels they run."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case, link_text
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.graph.parallel import imbalance


def look(case: Case) -> Iterator[Said]:
    """Applies to mixtures of experts: uneven loads over several devices, and engines that run experts one by one."""
    if not case.model.experts:
        return
    settings, ranks = case.scenario.settings, case.analysis.parallel.expert
    busiest = max(imbalance(block, ranks, settings.expert_skew) for block in case.model.experts)
    busiest *= settings.expert_capacity
    share = case.spent("moe")
    if busiest > 1.01:
        yield Finding(
            f"the busiest of {ranks} expert-parallel devices gets {busiest:.3g} times the mean number of tokens, and"
            " the others wait for it",
            share * (1 - 1 / busiest),
            {"time in experts": f"{share:.0%}", "skew of routing": f"{settings.expert_skew:g}"},
        )
        yield Hint(
            ("routing", "expert kernel", "parallelism"), f"experts are unevenly loaded: {busiest:.3g} times the mean"
        )
        yield Caution(
            "experts that pick their tokens look at later tokens and leave some without an expert: made for throughput"
            " and few experts; for latency tokens pick experts",
            ("expert-choice",),
        )
    else:
        why = "experts are not divided among devices" if ranks == 1 else "tokens are spread evenly over the experts"
        yield Vain(("routing", "expert kernel"), f"{why}: there is no load to balance and no padding to spare")
    yield from _exchanges(case)
    if "experts" not in case.scenario.profile.fusions and share > 0.1:
        title = case.scenario.profile.title or case.scenario.profile.name
        yield Hint(
            ("engine",), f"{title} runs the parts of experts one by one, where other engines fuse them ({share:.0%})"
        )


def _exchanges(case: Case) -> Iterator[Said]:
    """What experts on different devices exchange, where it is not hidden already."""
    settings, parallel = case.scenario.settings, case.analysis.parallel
    if not parallel.exchanging:
        return
    phases = {"prefill": (case.prefill_share, case.analysis.prefill)}
    if case.generates:
        phases["decode"] = case.decode_share, case.decode
    waits = {
        name: (weight, case.parts_share(phase, lambda op: op.op.exchange))
        for name, (weight, phase) in phases.items()
        if name not in settings.overlapped
    }
    if not waits:
        return
    share = sum(weight * part for weight, part in waits.values())
    if share >= LITTLE:
        over = link_text(case.analysis, parallel.span(parallel.tensor * parallel.data))
        yield Finding(
            f"experts on {parallel.expert} devices exchange their tokens over {over}: {share:.0%} of the time",
            share,
            {f"of {name}": f"{part:.0%}" for name, (_, part) in waits.items()},
        )
        yield Hint(
            ("two-batch-overlap",),
            f"what experts exchange takes {share:.0%} of the time, and the other half of a batch is work meanwhile",
        )
    yield Vain(
        ("two-batch-overlap",),
        f"what experts exchange takes {share:.0%} of the time, and each half of the batch reads the weights again",
    )


RULE = Rule(
    "expert-routing",
    "Uneven loads of experts waste the devices that wait; experts are the kernels to fuse first.",
    ("yuan R25", "zhou 16"),
    look,
)
