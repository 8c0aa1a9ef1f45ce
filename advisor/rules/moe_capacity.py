"""Mixtures of experts save arithmetic and no memory, and a batch touches more of them."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Rule, Said
from roofline.bound.memory import active_parameters, parameters
from roofline.core.units import si


def look(case: Case) -> Iterator[Said]:
    """Applies to models with experts."""
    if not case.model.experts:
        return
    memory, whole, active = case.analysis.memory, parameters(case.model), active_parameters(case.model)
    yield Finding(
        f"a token is multiplied with {active / whole:.0%} of the weights, and all of them have to be in memory:"
        f" {si(float(memory.weights), 'B')}, {memory.weights / memory.total:.0%} of what is kept",
        float(memory.weights / memory.total),
        {"parameters": si(whole), "of a token": si(active)},
        of="memory",
    )
    if not case.generates:
        return
    block = case.model.experts[0]
    one = block.top_k / block.experts
    sequences = case.batch * case.scenario.settings.beams
    touched = 1 - (1 - one) ** sequences
    if sequences > 1:
        yield Caution(
            f"{sequences} sequences touch {touched:.0%} of the experts in a step where one touches {one:.0%}, if all"
            " are picked alike: the bytes of weights of a step grow with the batch until all are read"
        )


RULE = Rule(
    "experts-capacity",
    "Experts cut arithmetic, not memory: all are stored, and a larger batch reads more of them.",
    ("yuan R14", "miao D20"),
    look,
)
