"""Parts of a pass: some layers or operators of a graph, some sequences or tokens of a step."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from msgspec.structs import replace

from roofline.graph.extents import Step
from roofline.graph.network import EMBEDDING, HEAD, Network
from roofline.graph.op import Kind, Op
from roofline.specs.hardware import Hardware, Interconnect


class Part(StrEnum):
    """Operators of a pass: all, attention in decode, MLP blocks, routed experts, or projections of keys and values."""

    ALL = "all"
    ATTENTION = "attention"
    BLOCKS = "blocks"
    EXPERTS = "experts"
    KEYS = "keys"

    def covers(self, op: Op) -> bool:
        match self:
            case Part.ATTENTION:
                return op.kind is Kind.ATTENTION or op.name.endswith("softmax")
            case Part.BLOCKS:
                return op.name.startswith(("gate_proj", "gate_up", "up_proj", "down_proj", "mlp_act"))
            case Part.EXPERTS:
                return op.of_experts
            case Part.KEYS:
                return op.name in ("k_proj", "v_proj", "kv_a_proj")
        return True


def truncated(graph: Network, depth: float) -> Network:
    """The graph with the fraction `depth` of its layers, and both ends."""
    if depth == 1:
        return graph
    ends = (EMBEDDING, HEAD)
    sections = (part if part.name in ends else replace(part, count=part.count * depth) for part in graph.sections)
    return replace(graph, sections=tuple(sections))


def without(graph: Network, *ends: str) -> Network:
    """The graph without the named sections."""
    return replace(graph, sections=tuple(section for section in graph.sections if section.name not in ends))


def filtered(graph: Network, part: Part, *, inside: bool) -> Network:
    """The graph with only the operators inside a part, or outside of it."""
    sections = (
        replace(section, ops=tuple(op for op in section.ops if part.covers(op) is inside)) for section in graph.sections
    )
    return replace(graph, sections=tuple(section for section in sections if section.ops))


def with_network(hardware: Hardware, bandwidth: float) -> Hardware:
    """The hardware with a network of this bandwidth alone."""
    inside = (link for link in hardware.interconnects if link.scope != "network")
    return replace(hardware, interconnects=(*inside, Interconnect("storage network", "network", bandwidth)))


def divided(step: Step, overlap: int) -> Step:
    """One of `overlap` micro-batches of a pass: part of its sequences, or of the tokens of its only one."""
    if overlap == 1:
        return step
    apart = step.batch >= overlap
    queries = np.where(apart, step.queries, step.queries / overlap)[()]
    batch = np.where(apart, step.batch / overlap, step.batch)[()]
    return step._replace(batch=batch, queries=queries, cached=step.cached + (step.queries - queries) / 2)
