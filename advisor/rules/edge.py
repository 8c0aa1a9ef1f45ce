"""Edge devices: small models, few bits, fused kernels, one user."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said
from roofline.bound.memory import active_parameters
from roofline.core.units import si

KINDS = ("soc", "cpu")
SLOW = 1e12
"""Bytes a second: processors with memory as fast as this are of the data centre, whatever they are called."""

SMALL = (1e9, 3e9)
"""Parameters of the models made for edge devices (Zhou et al. 2024, section 7)."""


def look(case: Case) -> Iterator[Said]:
    """Applies to a single stream on a processor with slow memory; of larger models it says what small ones reach."""
    hardware = case.hardware
    if hardware.kind not in KINDS or hardware.memory_bandwidth >= SLOW or not case.generates:
        return
    size = float(active_parameters(case.model))
    weights = sum(float(op.count * op.weight_bytes) for op in case.decode.ops)
    pace = hardware.memory_bandwidth / weights
    evidence = {"parameters used for a token": si(size), "bytes of weights a token": si(weights, "B")}
    if size > SMALL[1]:
        slow, fast = (pace * size / parameters for parameters in reversed(SMALL))
        evidence["at most, with 1 to 3 G parameters in this format"] = f"{slow:.3g} to {fast:.3g} steps/s"
    yield Finding(
        f"{hardware.title} reads {si(hardware.memory_bandwidth, 'B/s')}: at most {pace:.3g} decode steps a second"
        f" through {si(weights, 'B')} of weights",
        case.decode_share,
        evidence,
    )
    yield Hint(
        ("weight format", "layer kernel", "norm kernel", "engine", "drafting", "model size"),
        f"a device of {si(hardware.memory_bandwidth, 'B/s')} and {si(hardware.memory_capacity, 'B')}: fewer bits, fused"
        " kernels and small models suit it",
    )


RULE = Rule(
    "edge",
    "Edge devices answer at once and are limited: models of 1 to 3 billion parameters, few bits, fused kernels.",
    ("zhou 29", "miao D24"),
    look,
)
