"""Launches: the kernels that an engine launches for a placed graph, with their constants (`roofline.timing.constants`).

Fused operators are one kernel, every other operator is a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.bound.roof import Placement
from roofline.core.registry import cached
from roofline.graph.network import Network
from roofline.graph.op import Kind, Op, Section
from roofline.graph.size import as_size
from roofline.specs.engine import Engine
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS
from roofline.timing.calibration import Basis, Calibration, Match
from roofline.timing.constants import Choices, choices_of, constants_of
from roofline.timing.kernels.shapes import DECODE_QUERIES, KernelShape

IS_DECODE_KERNEL: Mapping[str, bool] = {
    "attention_prefill": False,
    "attention_decode": True,
    "gated_delta_rule": False,
    "kimi_delta": False,
    "mamba2": False,
    "state_update": True,
    "convolution_prefill": False,
    "convolution_decode": True,
    "sparse_prefill": False,
    "sparse_decode": True,
    "mla_decode": True,
}
"""Ops with kernels for decode alone (a few query tokens), or for prefill alone; others have one kernel for both."""


INDEXED = "index_scores", "fused_attention"
"""Operators that are one kernel model on every engine: the scores of an indexer, and attention to what it picks."""


class LaunchedKernel(Struct, frozen=True):
    """Operators of a section that run as one kernel, `count` times.

    `matches` are the constants by op of the measurement schema: two for attention, which has a prefill and a decode
    kernel, none where nothing was measured. `others` are those of a second kernel for the same operands: engines run
    the faster one. `upcasts_cache`: it reads a KV cache in a floating-point format that the hardware does not compute
    in (integers are unpacked in a few instructions; FP8 takes dozens where no instruction converts it).
    """

    parts: tuple[int, ...]
    count: float
    section: str
    shape: KernelShape | None
    matches: Mapping[str, Match]
    others: Mapping[str, Match]
    upcasts_cache: bool = False

    @property
    def kind(self) -> str:
        """The op of the schema whose constants it uses: errors of one kind are correlated."""
        return next(iter(self.matches), "unmeasured")

    @property
    def launches(self) -> float:
        """How often the host launches for it, without a CUDA graph."""
        name = self.shape.texts.get("weight_only") if self.shape else None
        return WEIGHT_ONLY_KERNELS[str(name)].launches if name else 1.0

    @property
    def always_measured(self) -> bool:
        """Whether it has constants for prefill and for decode."""
        found = {IS_DECODE_KERNEL.get(op) for op in self.matches}
        return None in found or len(found) == 2 or (bool(found) and self._by_token)

    @property
    def _by_token(self) -> bool:
        return self.shape is not None and self.shape.by_token

    def match(self, queries: Any) -> Match | None:
        """The constants for `queries` query tokens a sequence (the most of a grid); None without any."""
        both = {IS_DECODE_KERNEL.get(op) for op in self.matches} == {False, True}
        decode = (self._by_token and not both) or bool(np.max(queries) <= DECODE_QUERIES)
        return next((match for op, match in self.matches.items() if IS_DECODE_KERNEL.get(op, decode) == decode), None)

    def basis(self, queries: Any) -> Basis:
        """The basis of its constants in such a pass."""
        match = self.match(queries)
        return "bound" if match is None else match.basis

    def source(self, queries: Any) -> str:
        """The source of its constants in such a pass."""
        match = self.match(queries)
        if match is None:
            return "not measured: its bound at typical efficiencies"
        return match.origin


def launches(
    placement: Placement, engine: Engine, calibration: Calibration, *, prompts: bool = False
) -> list[LaunchedKernel]:
    """The kernels of a placed graph: the engine's fusions, and all other operators one by one.

    `prompts`: of a pass that computes prompts.
    """
    choices = choices_of(placement, engine, calibration, prompts)
    found: list[LaunchedKernel] = []
    start = 0
    for section in placement.network.sections:
        stop = start + len(section.ops)
        found += _of_section(section, start, placement.arithmetic[start:stop], engine.kernels, choices)
        start = stop
    return found


@cached(maxsize=4096)
def _of_section(
    section: Section,
    start: int,
    arithmetic: tuple[str | None, ...],
    fused: tuple[tuple[str, ...], ...],
    choices: Choices,
) -> tuple[LaunchedKernel, ...]:
    """The kernels of a section, with its `fused` operators in one; `start` is the index of its first operator."""
    kernels, ranks = [], _expert_ranks(section)
    for parts in _fused(section, fused):
        ops = tuple(section.ops[index] for index in parts)
        constants = constants_of(ops, arithmetic[parts[0]], choices, ranks)
        kernels.append(LaunchedKernel(tuple(start + index for index in parts), section.count, section.name, *constants))
    return tuple(kernels)


def kernel_count(network: Network, engine: Engine) -> float:
    """The kernels that an engine launches in a pass of a network, on any hardware."""
    return float(sum(section.count * len(_fused(section, engine.kernels)) for section in network.sections))


@lru_cache(maxsize=1024)
def _fused(section: Section, fused: tuple[tuple[str, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The operators of each kernel of a section, whose `fused` ones are one: the same on all hardware."""
    names = {op.name: index for index, op in enumerate(section.ops)}
    taken: set[int] = set()
    found = []
    for group in (*fused, INDEXED):
        parts = _fusible(section.ops, [names[name] for name in group if name in names and names[name] not in taken])
        if len(parts) > 1:
            taken.update(parts)
            found.append(parts)
    return tuple(sorted([*found, *((index,) for index in range(len(section.ops)) if index not in taken)]))


@lru_cache(maxsize=1024)
def _expert_ranks(section: Section) -> float:
    """The ranks that divide the experts of a section: those that its router chooses among, over those of this rank."""
    among = {op.writes[0].name: as_size(op.writes[0].shape[-1]) for op in section.ops if op.kind is Kind.GEMM}
    here = {op.operands[1].stored_shape[0] for op in section.ops if op.kind is Kind.MOE and len(op.operands) > 1}
    routed = among.get("router_logits")
    return 1.0 if routed is None else max((routed.terms[()] / as_size(count).terms[()] for count in here), default=1.0)


def _fusible(ops: Sequence[Op], indices: list[int]) -> tuple[int, ...]:
    """The operators of a fusion that fit one kernel: a collective between experts and their combination ends it.

    A norm fuses with the residual addition at the end of the layer before, in either order. An all-reduce, which is the
    first operator, fuses with the addition that follows it.
    """
    if not any(ops[index].kind is Kind.MOE for index in indices):
        reducing = [index for index in indices if ops[index].kind is Kind.COLLECTIVE and index + 1 in indices]
        rest = sorted(index for index in indices if ops[index].kind is not Kind.COLLECTIVE)
        if rest and ops[rest[0]].kind is Kind.GEMM:
            rest = list(takewhile(lambda index: ops[index].kind is Kind.GEMM, rest))
        return (*reducing, *rest)
    joined: list[int] = []
    for index in sorted(indices):
        between = range(joined[-1] + 1, index) if joined else ()
        if any(ops[other].kind is Kind.COLLECTIVE for other in between):
            break
        joined.append(index)
    return tuple(joined)
