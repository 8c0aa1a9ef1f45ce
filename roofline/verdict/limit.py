"""What limits a deployment: the largest part of the time of a decode step, or the prompts under load."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from roofline.bound.roof import Bound
from roofline.graph.op import Kind
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures, Phase
from roofline.serving.outcome import Outcome

MOSTLY = 0.5
"""The share of the time with prompts from which they are the limit under load."""


class Part(StrEnum):
    """What time goes to."""

    WEIGHTS = "GEMMs reading weights"
    CACHE = "attention on the KV cache"
    LINK = "communication between the devices"
    COMPUTE = "arithmetic"
    ACTIVATIONS = "reading and writing activations"
    SMALL = "small kernels"
    HOST = "the engine between kernels"
    PROMPTS = "prompts"
    FRONT = "the front end (HTTP, tokenizer)"


class Limit(Struct, frozen=True):
    """The part that takes most of the time, and its share of it: of a decode step, or of all with prompts.

    `within`: what takes most of that part.
    """

    part: Part
    share: float
    within: Part

    @property
    def roof(self) -> str:
        """What would have to be faster."""
        return _ROOFS[self.within]


_ROOFS = {
    Part.WEIGHTS: "memory bandwidth",
    Part.CACHE: "memory bandwidth",
    Part.LINK: "the links",
    Part.COMPUTE: "compute",
    Part.ACTIVATIONS: "memory bandwidth",
    Part.SMALL: "launches of kernels",
    Part.HOST: "the host",
    Part.FRONT: "the host",
}


def limit_of(analysis: Analysis, outcome: Outcome | None = None) -> Limit:
    """The limit of a static batch, or of a load whose mean batch it is."""
    if outcome is not None and outcome.prefill_share > MOSTLY:
        return Limit(Part.PROMPTS, outcome.prefill_share, _largest(analysis.prefill).part)
    return _largest(analysis.prefill if analysis.decode is None else analysis.decode)


def _largest(phase: Phase) -> Limit:
    shares = dict.fromkeys(Part, 0.0)
    whole = float(phase.expected.mid)
    for op, expectation in zip(phase.ops, phase.expected_ops, strict=True):
        time = float(expectation.time.mid)
        shares[_part(op, time)] += float(op.count) * time / whole
    busy = sum(shares.values())  # more than the whole where kernels run beside each other
    shares[Part.HOST] = max(0.0, 1 - busy)
    part = max(shares, key=lambda each: shares[each])
    return Limit(part, shares[part] / max(busy, 1.0), part)


LAUNCHED = 3
"""The time over that of the bytes from which a kernel without weights and cache is small: its launch takes it."""


def _part(op: OpFigures, time: float) -> Part:
    if op.kind == Kind.COLLECTIVE:
        return Part.LINK
    if op.bound == Bound.COMPUTE:
        return Part.COMPUTE
    if max(op.weight_bytes, op.kv_bytes) < op.bytes / 2:
        return Part.SMALL if time > LAUNCHED * float(op.bound_time) else Part.ACTIVATIONS
    return Part.WEIGHTS if op.weight_bytes >= op.kv_bytes else Part.CACHE
