"""Rules about mixtures of experts: memory, routing and all-to-all communication."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case, link_text
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.bound.memory import active_parameters, parameters
from roofline.core.units import si
from roofline.graph.ranks import imbalance

IMBALANCE = 1.01
"""Tokens of the busiest expert-parallel device over the mean from which it is reported."""


@rule("Experts save FLOPs, not memory: all are stored, and a larger batch reads more of them.", "yuan R14, miao D20")
def moe_capacity(case: Case) -> Iterator[Finding]:
    """Applies to MoE models."""
    if not case.model.experts:
        return
    memory, whole, active = case.analysis.memory, parameters(case.model), active_parameters(case.model)
    yield Bottleneck(
        f"a token activates {active / whole:.0%} of the weights, but all of them are in memory:"
        f" {si(float(memory.weights), 'B')}, {memory.weights / memory.total:.0%} of the total",
        float(memory.weights / memory.total),
        {"parameters": si(whole), "active per token": si(active)},
        of="memory",
    )
    sequences = case.batch * case.scenario.settings.beams
    if case.generates and sequences > 1:
        block = case.model.experts[0]
        one = block.top_k / block.experts
        yield Caution(
            f"{sequences} sequences activate {1 - (1 - one) ** sequences:.0%} of the experts in a step, one activates"
            f" {one:.0%}, with uniform routing: the weight bytes of a step grow with the batch until all are read"
        )


@rule("Unbalanced routing idles the devices that wait; experts are the first kernels to fuse.", "yuan R25, zhou 16")
def moe_routing(case: Case) -> Iterator[Finding]:
    """Applies to MoE models: unbalanced expert parallelism, all-to-all, and engines without fused experts."""
    if not case.model.experts:
        return
    settings, ranks = case.scenario.settings, case.analysis.parallel.expert
    busiest = max(imbalance(block.experts, block.top_k, ranks, settings.expert_skew) for block in case.model.experts)
    busiest *= settings.expert_capacity
    share = case.kind_share("moe")
    if busiest > IMBALANCE:
        yield Bottleneck(
            f"the busiest of {ranks} expert-parallel devices gets {busiest:.3g} times the mean number of tokens, and"
            " the others wait for it",
            share * (1 - 1 / busiest),
            {"time in experts": f"{share:.0%}", "skew of routing": f"{settings.expert_skew:g}"},
        )
        yield Hint(
            ("routing", "expert kernel", "parallelism"),
            f"the busiest device gets {busiest:.3g} times the mean number of tokens",
        )
        yield Caution(
            "expert-choice routing looks at later tokens and leaves some without an expert: it suits throughput with"
            " few experts; for latency use token-choice",
            ("expert-choice",),
        )
    else:
        why = "there is no expert parallelism" if ranks == 1 else "routing is uniform"
        yield NoBenefit(("routing", "expert kernel"), f"{why}: no imbalance and no padding")
    yield from _all_to_all(case)
    if "experts" not in case.scenario.profile.fusions and share > NEGLIGIBLE:
        title = case.scenario.profile.heading
        yield Hint(
            ("engine",), f"{title} runs experts unfused, other engines have fused kernels ({share:.0%} of the time)"
        )


def _all_to_all(case: Case) -> Iterator[Finding]:
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
    text = f"all-to-all takes {share:.0%} of the time"
    if share >= NEGLIGIBLE:
        over = link_text(case.analysis, parallel.span(parallel.tensor * parallel.data))
        yield Bottleneck(
            f"{text}: {parallel.expert} expert-parallel devices communicate over {over}",
            share,
            {f"of {name}": f"{part:.0%}" for name, (_, part) in exposed.items()},
        )
        yield Hint(("two-batch-overlap",), f"{text}, which the other half of the batch can overlap")
    yield NoBenefit(("two-batch-overlap",), f"{text}, and each half of the batch reads the weights again")
