"""Memory: weights exactly, the KV cache and recurrent states, and the activation peak by liveness over the graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.roof import Work, coefficient_rows, monomial_values, monomials_of, together
from roofline.graph.convention import Convention
from roofline.graph.extents import Step
from roofline.graph.network import EMBEDDING, HEAD, Network, Section, network
from roofline.graph.op import Op
from roofline.graph.size import Size, total
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import Model
from roofline.specs.precision import Precision, parse_precision

Stages: TypeAlias = tuple[tuple[str, ...], ...]
"""The layers of each pipeline stage; empty for a single one."""


class Memory(Struct, frozen=True):
    """Bytes on a device while a scenario runs; arrays where the workload is a grid."""

    weights: float
    kv_cache: Any
    state: Any
    activation_peak: Any
    capacity: float

    @property
    def total(self) -> Any:
        """Everything that must be resident at once."""
        return self.weights + self.kv_cache + self.state + self.activation_peak

    @property
    def fits(self) -> Any:
        """Whether it does."""
        return self.total <= self.capacity

    @property
    def headroom(self) -> Any:
        """Bytes left over; negative says by how much it does not fit."""
        return self.capacity - self.total


def stored_tensors(sections: Iterable[Section], role: Role) -> Iterator[tuple[Tensor, float]]:
    """Every stored tensor of a role once, with how many copies the model keeps: one a layer.

    A tied embedding is met at both ends of the network and stored once.
    """
    ends: set[str] = set()
    for section in sections:
        here: set[str] = set()
        for op in section.ops:
            for tensor in op.reads:
                if tensor.role is role and tensor.name not in here and tensor.name not in ends:
                    here.add(tensor.name)
                    yield tensor, section.count
        if section.name in (EMBEDDING, HEAD):
            ends |= here


def _stored_bytes(sections: Iterable[Section], role: Role) -> Size:
    """Bytes kept of all tensors of a role."""
    kept = stored_tensors(sections, role)
    return total(tensor.stored_elements * (count * tensor.format.bytes) for tensor, count in kept)


def _stage_sections(graph: Network, layers: Stages) -> list[list[Section]]:
    """The sections that each pipeline stage holds: its layers, and the ends on the first and last one."""
    if not layers:
        return [list(graph.sections)]
    parts: list[list[Section]] = []
    for index, stage in enumerate(layers):
        counts = Counter(stage)
        ends = {*([EMBEDDING] if index == 0 else []), *([HEAD] if index == len(layers) - 1 else [])}
        parts.append(
            [
                replace(section, count=counts[section.name]) if section.name in counts else section
                for section in graph.sections
                if section.name in counts or section.name in ends
            ]
        )
    return parts


@lru_cache(maxsize=512)
def weight_bytes(graph: Network, layers: Stages = ()) -> float:
    """Bytes of all stored weights: on the fullest device, where `layers` names those of each pipeline stage."""
    return max(float(_stored_bytes(part, Role.WEIGHT).evaluate({})) for part in _stage_sections(graph, layers))


def _reference(model: Model) -> Network:
    return network(model, parse_precision("bf16"))


@lru_cache(maxsize=512)
def parameters(model: Model) -> int:
    """How many parameters the model stores, its tower included."""
    weights = stored_tensors(_reference(model).sections, Role.WEIGHT)
    own: int = sum(round(count * tensor.stored_elements.evaluate({})) for tensor, count in weights)
    return own + model.extra_parameters + (parameters(model.tower) if model.tower else 0)


@lru_cache(maxsize=512)
def active_parameters(model: Model) -> int:
    """How many parameters one token's forward pass uses: all but the routed experts that are not picked."""
    idle: int = sum(
        round(count * tensor.stored_elements.evaluate({}) * (1 - used))
        for tensor, count in stored_tensors(_reference(model).sections, Role.WEIGHT)
        if (used := _used_share(model, tensor)) < 1
    )
    return parameters(model) - idle


def _used_share(model: Model, tensor: Tensor) -> float:
    """The share of an expert tensor that one token touches."""
    if not tensor.name.startswith("expert_"):
        return 1.0
    experts = tensor.stored_shape[0]
    return next((pool.top_k / pool.experts for pool in model.experts if pool.experts == experts), 1.0)


@lru_cache(maxsize=512)
def _kept(graph: Network, role: Role, layers: Stages) -> Any:
    """Stored bytes of a role as coefficients: monomials and one row for each distinct stage."""
    sizes = list(dict.fromkeys(_stored_bytes(part, role) for part in _stage_sections(graph, layers)))
    monomials = monomials_of(sizes)
    return monomials, coefficient_rows(sizes, monomials)


def kept_bytes(graph: Network, role: Role, step: Step, layers: Stages = ()) -> Any:
    """Bytes of a role in memory after a forward pass, on the fullest device; flat over the step's grid."""
    monomials, rows = _kept(graph, role, layers)
    if not monomials:
        return np.zeros(max(1, math.prod(step.shape)))
    return (rows @ monomial_values(monomials, step, graph)).max(axis=0)


def kv_bytes_per_token(model: Model, precision: Precision) -> float:
    """Bytes that one token of one sequence adds to the cache, as long as no window drops older ones."""
    return float(kept_bytes(network(model, precision), Role.KV, Step(1, 1, 0))[0])


def state_bytes_per_sequence(model: Model, precision: Precision) -> float:
    """Bytes of recurrent state that one sequence keeps, whatever its length."""
    return float(kept_bytes(network(model, precision), Role.STATE, Step(1, 1, 0))[0])


@lru_cache(maxsize=1024)
def _live(ops: tuple[Op, ...]) -> Work:
    """Bytes of the activations alive while each operator of a section runs, `ops` in their order.

    A tensor lives from the operator that writes it to the last that reads it. What no operator of the section writes
    comes from before it; what none reads is its result and lives to the end.
    """
    born: dict[str, int] = {}
    last: dict[str, int] = {}
    tensors: dict[str, Tensor] = {}
    for index, op in enumerate(ops):
        for tensor in op.reads:
            if tensor.role is Role.ACTIVATION:
                born.setdefault(tensor.name, 0)
                last[tensor.name] = index
                tensors.setdefault(tensor.name, tensor)
        for tensor in op.writes:
            if tensor.role is Role.ACTIVATION:
                born.setdefault(tensor.name, index)
                last[tensor.name] = index
                tensors[tensor.name] = tensor
    read = {tensor.name for op in ops for tensor in op.reads}
    first = np.array([born[name] for name in tensors])
    final = np.array([last[name] if name in read else len(ops) - 1 for name in tensors])
    running = np.arange(len(ops))[:, np.newaxis]
    sizes = [tensor.bytes for tensor in tensors.values()]
    monomials = monomials_of(sizes)
    alive = ((first <= running) & (running <= final)).astype(float)
    return Work(monomials, (alive @ coefficient_rows(sizes, monomials))[np.newaxis])


def written_sizes(section: Section) -> list[Size]:
    """The LLM-Viewer convention: the sum of all activations that the operators of a block write."""
    return [total(tensor.bytes for op in section.ops for tensor in op.writes if tensor.role is Role.ACTIVATION)]


@lru_cache(maxsize=512)
def _activation_rows(graph: Network, by_block: bool) -> tuple[Any, Any]:
    if by_block:
        sizes = [size for section in graph.sections if section.name != HEAD for size in written_sizes(section)]
        monomials = monomials_of(sizes)
        return monomials, coefficient_rows(sizes, monomials)
    alive = together([_live(section.ops) for section in graph.sections])
    return alive.monomials, alive.rows[0]


def activation_peak(graph: Network, step: Step, convention: Convention) -> Any:
    """The most bytes of activations alive at once during a forward pass; flattened over the grid's points."""
    monomials, rows = _activation_rows(graph, convention.block_activations)
    return (rows @ monomial_values(monomials, step, graph)).max(axis=0)


@lru_cache(maxsize=512)
def viewer_weight_bytes(graph: Network) -> float:
    """The LLM-Viewer convention: weights of the blocks only, without embedding and output head."""
    return weight_bytes(replace(graph, sections=tuple(s for s in graph.sections if s.name != "head")))
