"""Rules about mixtures of experts: memory, routing and all-to-all communication."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case, link_text
from roofline.advisor.rules import Finding, Told, rule
from roofline.bound.memory import active_parameters, parameters
from roofline.graph.ranks import imbalance

IMBALANCE = 1.01
"""Tokens of the busiest expert-parallel device over the mean from which it is reported."""


@rule
def moe_capacity(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to MoE models."""
    if not case.model.experts:
        return
    memory, whole, active = case.analysis.memory, parameters(case.model), active_parameters(case.model)
    held = float(memory.weights / memory.total)
    yield from told("stored", held, held=held, part=active / whole, whole=whole, active=active)
    sequences = case.batch * case.scenario.settings.beams
    if case.generates and sequences > 1:
        block = case.model.experts[0]
        one = block.top_k / block.experts
        yield from told("reached", sequences=sequences, reached=1 - (1 - one) ** sequences, one=one)


@rule
def moe_routing(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to MoE models: unbalanced expert parallelism, all-to-all, and engines without fused experts."""
    if not case.model.experts:
        return
    settings, ranks = case.scenario.settings, case.analysis.parallel.expert
    busiest = max(imbalance(block.experts, block.top_k, ranks, settings.expert_skew) for block in case.model.experts)
    busiest *= settings.expert_capacity
    share = case.kind_share("moe")
    if busiest > IMBALANCE:
        yield from told("unbalanced", share * (1 - 1 / busiest), share=share, ranks=ranks, busiest=busiest)
        yield from told("later")
    else:
        yield from told("alone" if ranks == 1 else "uniform")
    yield from _all_to_all(case, told)
    if "experts" not in case.scenario.profile.fusions and share > NEGLIGIBLE:
        yield from told("unfused", share=share)


def _all_to_all(case: Case, told: Told) -> Iterator[Finding]:
    """The share of all-to-all that two-batch overlap does not hide already."""
    settings, parallel = case.scenario.settings, case.analysis.parallel
    if not parallel.all_to_all:
        return
    phases = {"prefill": (case.prefill_share, case.analysis.prefill)}
    if case.generates:
        phases["decode"] = case.decode_share, case.decode
    exposed = {
        name: (weight, case.time_share(phase, lambda op: op.op.is_all_to_all))
        for name, (weight, phase) in phases.items()
        if name not in settings.two_batch_overlap
    }
    if not exposed:
        return
    share = sum(weight * part for weight, part in exposed.values())
    if share >= NEGLIGIBLE:
        over = link_text(case.analysis, parallel.span(parallel.tensor * parallel.data))
        evidence = {f"of {name}": f"{part:.0%}" for name, (_, part) in exposed.items()}
        yield from told("exchange", share, evidence=evidence, share=share, ranks=parallel.expert, over=over)
    yield from told("halved", share=share)
