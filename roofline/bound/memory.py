"""Memory of a network: weights, KV cache, recurrent states, and the activation peak by liveness analysis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.roof import Work, coefficient_rows, concatenate, monomial_values, monomials_of
from roofline.graph.convention import Convention
from roofline.graph.extents import Step
from roofline.graph.layers.engram import TABLE
from roofline.graph.network import EMBEDDING, HEAD, Build, Network, network
from roofline.graph.op import Op, Section
from roofline.graph.parallel import SINGLE, Parallelism, stages
from roofline.graph.size import ZERO, Size, product, total
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Model
from roofline.specs.precision import Precision, parse_precision
from roofline.specs.schemes import BLOCK, WeightScheme

Stages: TypeAlias = tuple[tuple[str, ...], ...]
"""The layers of each pipeline stage; empty for a single one."""


class Memory(Struct, frozen=True):
    """Memory of a device in bytes; arrays where the workload is a grid.

    `runtime`: the context of the device and workspaces. `budget`: what the engine may use of the device's `capacity`.
    """

    weights: float
    kv_cache: Any
    state: Any
    activation_peak: Any
    runtime: float
    budget: Any
    capacity: float

    @property
    def total(self) -> Any:
        """The sum of all parts."""
        return self.weights + self.kv_cache + self.state + self.activation_peak + self.runtime

    @property
    def fits(self) -> Any:
        """Whether the total is within the budget."""
        return self.total <= self.budget

    @property
    def headroom(self) -> Any:
        """Free bytes of the budget; negative if the total exceeds it."""
        return self.budget - self.total


def stored_tensors(sections: Iterable[Section], role: Role) -> Iterator[tuple[Tensor, float]]:
    """Every stored tensor of a role, with its number of copies (layers). A tied embedding is stored once."""
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
    stored = stored_tensors(sections, role)
    return total(tensor.stored_elements * (count * tensor.format.bytes) for tensor, count in stored)


def stage_sections(graph: Network, layers: Stages) -> list[list[Section]]:
    """The sections of each pipeline stage: its layers, and the ends on the first and last stage."""
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


def pipeline_stages(model: Model, parallel: Parallelism) -> Stages:
    """The layers of each pipeline stage; empty for a single stage."""
    return stages(model, parallel.pipeline) if parallel.pipeline > 1 else ()


@lru_cache(maxsize=512)
def weight_bytes(graph: Network, layers: Stages = (), tables: float = 1.0) -> float:
    """Bytes of all stored weights, on the fullest device of a pipeline with stages `layers`.

    Of tables of n-grams it holds the fraction `tables`.
    """

    def held(part: list[Section]) -> float:
        whole = float(_stored_bytes(part, Role.WEIGHT).evaluate({}))
        return whole if tables == 1.0 else whole - (1 - tables) * named_bytes(part, TABLE)

    return max(map(held, stage_sections(graph, layers)))


def named_bytes(sections: Iterable[Section], *prefixes: str) -> float:
    """Bytes of the stored weights whose names begin so."""
    return sum(
        count * tensor.format.bytes * float(tensor.stored_elements.evaluate({}))
        for tensor, count in stored_tensors(sections, Role.WEIGHT)
        if tensor.name.startswith(prefixes)
    )


def _reference(model: Model) -> Network:
    return network(model, parse_precision("bf16"))


@lru_cache(maxsize=512)
def parameters(model: Model) -> int:
    """The number of stored parameters, including the encoder's."""
    weights = stored_tensors(_reference(model).sections, Role.WEIGHT)
    own: int = sum(round(count * tensor.stored_elements.evaluate({})) for tensor, count in weights)
    return own + model.extra_parameters + (parameters(model.tower) if model.tower else 0)


class _ByComponent(WeightScheme, frozen=True):
    """A scheme whose formats have the names of the components."""

    def format_of(self, component: str, base: Format, layers: int, group: int = 1, columns: int = BLOCK) -> Format:
        del layers, group, columns
        return replace(base, name=component)


@lru_cache(maxsize=64)
def component_elements(model: Model) -> Mapping[str, int]:
    """The stored elements of each component of a weight scheme, without those of an encoder beside the decoder."""
    precision = replace(parse_precision("bf16"), weights=_ByComponent("by component"))
    found: Counter[str] = Counter()
    for tensor, count in stored_tensors(network(model, precision).sections, Role.WEIGHT):
        found[tensor.format.name] += round(count * tensor.stored_elements.evaluate({}))
    return found


@lru_cache(maxsize=512)
def active_parameters(model: Model) -> int:
    """The parameters that one token uses: all but inactive routed experts, and rows of a memory of n-grams."""
    idle: int = sum(
        round(count * tensor.stored_elements.evaluate({}) * (1 - active))
        for tensor, count in stored_tensors(_reference(model).sections, Role.WEIGHT)
        if (active := _active_share(model, tensor)) < 1
    )
    return parameters(model) - idle


def _active_share(model: Model, tensor: Tensor) -> float:
    """The fraction of a tensor that one token uses: top_k / experts for routed experts, its rows of an Engram."""
    if tensor.name == TABLE:
        return float(product(tensor.shape).evaluate({"batch": 1, "queries": 1}) / tensor.stored_elements.evaluate({}))
    if not tensor.name.startswith("expert_"):
        return 1.0
    experts = tensor.stored_shape[0]
    return next((pool.top_k / pool.experts for pool in model.experts if pool.experts == experts), 1.0)


@lru_cache(maxsize=512)
def _resident_rows(graph: Network, role: Role, layers: Stages) -> Any:
    """Stored bytes of a role: monomials, and one row of coefficients for each distinct stage."""
    sizes = list(dict.fromkeys(_stored_bytes(part, role) for part in stage_sections(graph, layers)))
    monomials = monomials_of(sizes)
    return monomials, coefficient_rows(sizes, monomials)


def resident_bytes(graph: Network, role: Role, step: Step, layers: Stages = ()) -> Any:
    """Bytes of a role in memory after a forward pass on the fullest device, for each point of the flattened grid."""
    monomials, rows = _resident_rows(graph, role, layers)
    if not monomials:
        return np.zeros(max(1, math.prod(step.shape)))
    return (rows @ monomial_values(monomials, step, graph)).max(axis=0)


def section_bytes(graph: Network, sections: Sequence[Section], role: Role, step: Step) -> list[float]:
    """Bytes of a role in the layers of each section after a forward pass of one workload."""
    sizes = [_stored_bytes([section], role) for section in sections]
    monomials = monomials_of(sizes)
    found: list[float] = (coefficient_rows(sizes, monomials) @ monomial_values(monomials, step, graph)[:, 0]).tolist()
    return found


def kv_bytes_per_token(model: Model, precision: Precision, parallel: Parallelism = SINGLE, length: int = 1) -> float:
    """KV cache bytes per token on the fullest rank, of a sequence so long; by default below any window of attention."""
    graph = network(model, precision, Build(("attention",), parallel=parallel))
    return float(resident_bytes(graph, Role.KV, Step(1, length, 0), pipeline_stages(model, parallel))[0]) / length


def state_bytes_per_sequence(model: Model, precision: Precision) -> float:
    """Bytes of recurrent state per sequence."""
    return float(resident_bytes(network(model, precision), Role.STATE, Step(1, 1, 0))[0])


@lru_cache(maxsize=1024)
def _live(ops: tuple[Op, ...], without: str = "", held: Size = ZERO) -> Work:
    """Bytes of live activations during each operator of a section, but for the tensor named `without`.

    `held` are those of other sections. A tensor is live from the operator that writes it (the first, for inputs of the
    section) to the last that reads it (the last of the section, for outputs).
    """
    born: dict[str, int] = {}
    last: dict[str, int] = {}
    tensors: dict[str, Tensor] = {}
    for index, op in enumerate(ops):
        for tensor in op.tensors:
            if tensor.role is Role.ACTIVATION and tensor.name != without:
                written = tensor in op.writes
                born.setdefault(tensor.name, index if written else 0)
                last[tensor.name] = index
                tensors[tensor.name] = tensor if written else tensors.get(tensor.name, tensor)
    read = {tensor.name for op in ops for tensor in op.reads}
    first = np.array([born[name] for name in tensors])
    final = np.array([last[name] if name in read else len(ops) - 1 for name in tensors])
    running = np.arange(len(ops))[:, np.newaxis]
    sizes = [*(tensor.bytes for tensor in tensors.values()), held]
    monomials = monomials_of(sizes)
    alive = np.column_stack([(first <= running) & (running <= final), np.ones(len(ops))])
    return Work(monomials, (alive @ coefficient_rows(sizes, monomials))[np.newaxis])


@lru_cache(maxsize=512)
def _activation_rows(graph: Network, by_block: bool, without: str = "") -> tuple[Any, Any]:
    if by_block:
        blocks = (section.ops for section in graph.sections if section.name != HEAD)
        sizes = [
            total(tensor.bytes for op in ops for tensor in op.writes if tensor.role is Role.ACTIVATION)
            for ops in blocks
        ]
        monomials = monomials_of(sizes)
        return monomials, coefficient_rows(sizes, monomials)
    alive = concatenate([_live(section.ops, without, section.held) for section in graph.sections])
    return alive.monomials, alive.rows[0]


def activation_peak(graph: Network, step: Step, convention: Convention, without: str = "") -> Any:
    """The activation peak of a forward pass in bytes, for each point of the flattened grid.

    The tensor named `without` does not count.
    """
    monomials, rows = _activation_rows(graph, convention.block_activations, without)
    return (rows @ monomial_values(monomials, step, graph)).max(axis=0)


@lru_cache(maxsize=512)
def viewer_weight_bytes(graph: Network) -> float:
    """Bytes of the blocks' weights, without embedding and lm_head, for the LLM-Viewer convention."""
    return weight_bytes(replace(graph, sections=tuple(s for s in graph.sections if s.name != HEAD)))
