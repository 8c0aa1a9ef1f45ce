"""The roofline: a graph placed on hardware, and the bound time of each operator.

    bound = max(matrix FLOPs / matrix peak, vector FLOPs / vector peak, bytes / bandwidth, link bytes / link bandwidth)

Counts are linear in a few monomials of the workload's extents (`roofline.graph.size`). Placing a graph collects the
coefficients in one array, so that one matrix multiplication evaluates all operators at all points of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import UnsupportedError
from roofline.graph.extents import Step, extents
from roofline.graph.layers.engram import ENGRAM
from roofline.graph.network import Network
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.op import Op
from roofline.graph.parallel import ONE_NODE, Nodes, over_link
from roofline.graph.size import ZERO, Monomial, Size
from roofline.graph.tensor import Role
from roofline.specs.formats import DEQUANTIZE_FLOPS, PROMOTIONS, WIDTH
from roofline.specs.hardware import Hardware

Array = NDArray[np.float64]


class Bound(StrEnum):
    """What limits an operator or a phase."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"


def arithmetic_of(op: Op, hardware: Hardware, base: str, forced: str | None = None) -> str | None:
    """The arithmetic of a GEMM on this hardware; None for operators without matrix FLOPs.

    The narrowest arithmetic that the hardware supports and that every operand can be promoted to: 16 bits for INT4
    weights with 16-bit activations, INT8 for INT4 x INT4 without an INT4 unit. Of equal widths, the model's own `base`.
    """
    if not op.operands:
        return None
    if forced is not None:
        if hardware.supports(forced):
            return forced
        raise UnsupportedError(f"{hardware.name} does not compute in {forced}; it has {', '.join(hardware.formats)}")
    ladders = [PROMOTIONS[tensor.format.arithmetic] for tensor in op.operands]
    for candidate in sorted(ladders[0], key=lambda name: (WIDTH[name], name != base)):
        if all(candidate in ladder for ladder in ladders) and hardware.supports(candidate):
            return candidate
    names = " x ".join(dict.fromkeys(tensor.format.name for tensor in op.operands))
    raise UnsupportedError(
        f"{hardware.name} cannot compute {op.name} in {names}, nor in anything wider;"
        f" it has {', '.join(hardware.formats)}"
    )


class Row(IntEnum):
    """The rows of `Placement.coefficients`, for one instance of an operator."""

    MATRIX_TIME = 0
    VECTOR_TIME = 1
    MEMORY_TIME = 2
    LINK_TIME = 3
    FLOPS = 4
    BYTES = 5
    LINK_BYTES = 6
    WEIGHT_BYTES = 7
    ACTIVATION_BYTES = 8
    KV_BYTES = 9
    STATE_BYTES = 10
    UPCAST_FLOPS = 11


ROLES = (Role.WEIGHT, Role.ACTIVATION, Role.KV, Role.STATE)  # in the order of their rows
TIMES = Row.FLOPS  # the number of time rows, which come first
LINEAR = slice(Row.FLOPS, Row.WEIGHT_BYTES)  # the rows whose totals are sums over operators


_BLOCK = 8192  # grid points per block, whose working set fits in the CPU cache


class Placement(Struct, frozen=True, eq=False, dict=True):
    """A network on hardware: the arithmetic of each operator, and its counts as coefficients of `monomials`.

    `coefficients` has shape (len(Row), operators, monomials), with times in seconds. `roofs` are the compute peaks of
    the operators in FLOP/s: of the matrix unit for GEMMs, else of the vector unit; None where it is unknown.
    """

    network: Network
    hardware: Hardware
    ops: tuple[tuple[Op, float, str], ...]
    arithmetic: tuple[str | None, ...]
    roofs: tuple[float | None, ...]
    monomials: tuple[Monomial, ...]
    coefficients: Array
    counts: Array
    nodes: Nodes = ONE_NODE

    def values(self, step: Step) -> Array:
        """The values of the monomials for a forward pass: shape (monomials, points of the broadcast grid)."""
        return monomial_values(self.monomials, step, self.network)

    @cached_property
    def all_to_alls(self) -> NDArray[np.intp]:
        """The indices of the all-to-alls that overlap with computation; empty without micro-batches that do."""
        overlaps = self.network.overlap_batches > 1
        return np.array([i for i, (op, _, _) in enumerate(self.ops) if overlaps and op.is_all_to_all], dtype=np.intp)

    @cached_property
    def experts(self) -> NDArray[np.intp]:
        """The indices of operators on devices of experts alone; empty without any."""
        apart = self.network.ping_pong > 0
        return np.array([i for i, (op, _, _) in enumerate(self.ops) if apart and op.of_experts], dtype=np.intp)

    @cached_property
    def _timed(self) -> tuple[Array, Array]:
        """The distinct time rows of operators, and how often each runs."""
        rows = self.coefficients[:TIMES].transpose(1, 0, 2).copy()
        counts: dict[bytes, float] = {}
        for row, count in zip(rows, self.counts.tolist(), strict=True):
            counts[row.tobytes()] = counts.get(row.tobytes(), 0.0) + count
        distinct = np.frombuffer(b"".join(counts)).reshape(len(counts), TIMES, -1)
        return np.ascontiguousarray(distinct.transpose(1, 0, 2)), np.array(list(counts.values()))

    def _time_of(self, indices: NDArray[np.intp], values: Array) -> Array:
        """Bound seconds of some operators, for each point."""
        seconds: Array = self.counts[indices] @ (self.coefficients[:TIMES, indices] @ values).max(axis=0)
        return seconds

    def hidden(self, time: Array, sent: Array, experts: Array) -> Array:
        """The seconds that overlap in a pass of `time`, of which all-to-alls take `sent`, and `experts` theirs."""
        batches = self.network.ping_pong
        both: Array = waiting(time, sent, experts, batches) if batches else hidden(sent, time)
        return both

    @cached_property
    def _counted(self) -> Array:
        """Coefficients of FLOPs, bytes and link bytes of the whole pass."""
        linear: Array = np.tensordot(self.counts, self.coefficients[LINEAR], axes=(0, 1))
        return linear

    def total_time(self, values: Array) -> Array:
        """Bound seconds of the whole pass, for each point."""
        rows, counts = self._timed
        times = [counts @ np.maximum.reduce(rows @ block) for block in blocks(values)]
        time = times[0] if len(times) == 1 else np.concatenate(times)
        return time - self._overlapped(time, values)[0] if self.all_to_alls.size else time

    def _overlapped(self, time: Array, values: Array) -> tuple[Array, Array]:
        """The bound seconds that overlap, and those of the all-to-alls that do."""
        sent = self._time_of(self.all_to_alls, values)
        return self.hidden(time, sent, self._time_of(self.experts, values)), sent

    def summary(self, values: Array) -> Array:
        """Totals of the pass, with shape (6, points).

        Bound seconds; those of memory-bound and of link-bound operators; FLOPs, bytes, link bytes.
        """
        if values.shape[1] > _BLOCK:
            return np.concatenate([self.summary(block) for block in blocks(values)], axis=1)
        rows, counts = self._timed
        matrix, vector, memory, link = rows @ values
        compute = np.maximum(matrix, vector)
        device = np.maximum(compute, memory)
        time = np.maximum(device, link)
        on_link = link > device
        in_memory = (memory > compute) & ~on_link
        timed = [counts @ time, counts @ np.where(in_memory, time, 0.0), counts @ np.where(on_link, time, 0.0)]
        if self.all_to_alls.size:
            timed = self._overlap(timed, *self._overlapped(timed[0], values))
        return np.concatenate([timed, self._counted @ values])

    def _overlap(self, timed: list[Array], overlapped: Array, sent: Array) -> list[Array]:
        """Total, memory-bound and link-bound seconds with micro-batches that overlap."""
        time, in_memory, on_link = timed
        total, rest = time - overlapped, np.maximum(time - sent, 1e-30)
        longer = (sent / 2 if self.network.ping_pong else sent) >= total
        share = total / rest
        return [total, np.where(longer, 0.0, in_memory * share), np.where(longer, total, (on_link - sent) * share)]


def hidden(all_to_all: Any, time: Any) -> Any:
    """The seconds that two-batch overlap hides: the shorter of all-to-alls and all else in `time`."""
    return np.minimum(all_to_all, time - all_to_all)


def waiting(time: Any, sent: Any, experts: Any, batches: int) -> Any:
    """The seconds of a micro-batch's pass that its `batches` do not add up with devices of attention and of experts.

    Each of both pools, and the links in each direction, take one micro-batch after the other, and a micro-batch one
    layer after the other: a pass of the m takes m max(attention, experts, sent / 2, (attention + experts + sent) / m)
    (MegaScale-Infer, 2025, section 4.1: the conditions for m are those under which the last is the least).
    """
    pools = np.maximum(np.maximum(time - sent - experts, experts), sent / 2)
    return time - np.maximum(pools, time / batches)


def blocks(values: Array, points: int = _BLOCK) -> Iterator[Array]:
    """`values` in blocks of at most `points` points."""
    if values.shape[1] <= points:
        yield values
        return
    for start in range(0, values.shape[1], points):
        yield np.ascontiguousarray(values[:, start : start + points])


def monomial_values(monomials: Sequence[Monomial], step: Step, network: Network) -> Array:
    """The value of each monomial for a forward pass of `network`: shape (monomials, points of the step's grid)."""
    return values_at(monomials, extents(step, network.rules), step.shape)


def values_at(monomials: Sequence[Monomial], numbers: Mapping[str, Any], grid: tuple[int, ...]) -> Array:
    """The value of each monomial for these extents, whose shapes broadcast to `grid`."""
    columns: list[Any] = []
    for names in monomials:
        value: Any = 1.0
        for name in names:
            value = value * numbers[name]
        columns.append(value)
    if not grid:
        return np.array(columns, dtype=np.float64)[:, np.newaxis]
    values = np.empty((len(columns), *grid))
    for row, column in zip(values, columns, strict=True):
        row[...] = column
    return values.reshape(len(columns), math.prod(grid))


def monomials_of(sizes: Sequence[Size]) -> tuple[Monomial, ...]:
    """The distinct monomials of `sizes`."""
    return tuple(sorted({names for size in sizes for names in size.terms}))


def coefficient_rows(sizes: Sequence[Size], monomials: Sequence[Monomial]) -> Array:
    """The coefficients of `sizes`, with shape (sizes, monomials)."""
    columns = {names: column for column, names in enumerate(monomials)}
    rows = np.zeros((len(sizes), len(monomials)))
    for row, size in enumerate(sizes):
        for names, value in size.terms.items():
            rows[row, columns[names]] = value
    return rows


@lru_cache(maxsize=1024)
def place(network: Network, hardware: Hardware, nodes: Nodes = ONE_NODE, offload: Offload = RESIDENT) -> Placement:
    """The network of one rank on `hardware`.

    Raises UnsupportedError where the hardware lacks an operator's arithmetic or link.
    """
    arithmetic = [_arithmetic(part.ops, hardware, network.base, network.compute) for part in network.sections]
    works = [_work(part.ops, chosen) for part, chosen in zip(network.sections, arithmetic, strict=True)]
    ops = network.ops
    chosen = tuple(format for part in arithmetic for format in part)
    peaks, vector = (
        [_roof(op, format, hardware) for (op, _, _), format in zip(ops, chosen, strict=True)],
        hardware.vector_peak,
    )
    monomials, coefficients = _counted(concatenate(works), [op for op, _, _ in ops], peaks, hardware, nodes, offload)
    return Placement(
        network=network,
        hardware=hardware,
        ops=ops,
        arithmetic=chosen,
        roofs=tuple(peak or vector for peak in peaks),
        monomials=monomials,
        coefficients=coefficients,
        counts=np.array([count for _, count, _ in ops], dtype=np.float64),
        nodes=nodes,
    )


def _roof(op: Op, arithmetic: str | None, hardware: Hardware) -> float | None:
    """The peak of the matrix units for an operator; None without matrix FLOPs."""
    if arithmetic is None:
        return None
    weights = (tensor for tensor in op.operands if tensor.role is Role.WEIGHT)
    return hardware.matrix_roof(arithmetic, any(tensor.format.arithmetic != arithmetic for tensor in weights))


@lru_cache(maxsize=4096)
def _arithmetic(ops: tuple[Op, ...], hardware: Hardware, base: str, forced: str | None) -> tuple[str | None, ...]:
    """The arithmetic of each operator of a section."""
    return tuple(arithmetic_of(op, hardware, base, forced) for op in ops)


class Work(NamedTuple):
    """Hardware-independent counts of operators: `rows` of shape (kinds, operators, monomials)."""

    monomials: tuple[Monomial, ...]
    rows: Array


class WorkRow(IntEnum):
    """The first rows of `Work`; bytes by role follow, in the order of ROLES."""

    MATRIX_FLOPS = 0
    VECTOR_FLOPS = 1
    UPCAST_FLOPS = 2
    LINK_BYTES = 3


@lru_cache(maxsize=2048)
def _work(ops: tuple[Op, ...], arithmetic: tuple[str | None, ...]) -> Work:
    """The work of a section, in the order of WorkRow and ROLES."""
    touched = [(index, tensor) for index, op in enumerate(ops) for tensor in op.tensors]
    converted = [  # operands that are upcast to the arithmetic, by vector FLOPs
        (index, tensor)
        for index, (op, own) in enumerate(zip(ops, arithmetic, strict=True))
        for tensor in op.operands
        if own is not None and tensor.format.arithmetic != own
    ]
    sizes = [op.matrix_flops for op in ops] + [op.vector_flops for op in ops]
    sizes += [op.link.bytes if op.link else ZERO for op in ops]
    sizes += [tensor.elements for _, tensor in touched] + [tensor.elements for _, tensor in converted]
    monomials = monomials_of(sizes)
    starts = np.cumsum([len(ops), len(ops), len(ops), len(touched)])
    matrix, vector, sent, elements, foreign = np.split(coefficient_rows(sizes, monomials), starts)

    rows = np.zeros((len(WorkRow) + len(ROLES), len(ops), len(monomials)))
    rows[WorkRow.MATRIX_FLOPS], rows[WorkRow.VECTOR_FLOPS], rows[WorkRow.LINK_BYTES] = matrix, vector, sent
    np.add.at(rows[WorkRow.UPCAST_FLOPS], [index for index, _ in converted], DEQUANTIZE_FLOPS * foreign)
    owners = [ROLES.index(tensor.role) for _, tensor in touched], [index for index, _ in touched]
    scale = np.array([tensor.format.bits / 8 for _, tensor in touched]).reshape(-1, 1)
    np.add.at(rows[len(WorkRow) :], owners, elements * scale)
    return Work(monomials, rows)


def concatenate(works: Sequence[Work]) -> Work:
    """The work of consecutive sections; the monomials include the constant, for latencies."""
    monomials = tuple(sorted({(), *(names for work in works for names in work.monomials)}))
    columns = {names: column for column, names in enumerate(monomials)}
    rows = np.zeros((works[0].rows.shape[0], sum(work.rows.shape[1] for work in works), len(monomials)))
    start = 0
    for work in works:
        stop = start + work.rows.shape[1]
        rows[:, start:stop, [columns[names] for names in work.monomials]] = work.rows
        start = stop
    return Work(monomials, rows)


def _counted(
    work: Work, ops: Sequence[Op], peaks: Sequence[float | None], hardware: Hardware, nodes: Nodes, offload: Offload
) -> tuple[tuple[Monomial, ...], Array]:
    """The coefficients of a placement, (len(Row), operators, monomials); an undocumented peak counts as infinite."""
    matrix, vector, upcast, sent = work.rows[: len(WorkRow)]
    by_role = work.rows[len(WorkRow) :]
    moved = by_role.sum(axis=0)
    weights = by_role[ROLES.index(Role.WEIGHT)]
    of_weights = np.array([[_streamed(op, offload)] for op in ops]) if offload.tables else offload.weights
    streamed = of_weights * weights + offload.kv * by_role[ROLES.index(Role.KV)]
    on_link, sent = np.zeros(sent.shape), sent.copy()
    for index, op in enumerate(ops):
        if op.link is not None:
            link = op.link
            path = over_link(hardware, nodes, link.collective, link.reach, link.ranks, link.steps)
            sent[index] *= path.share
            on_link[index] = sent[index] / path.bandwidth
            on_link[index, work.monomials.index(())] += path.latency
    if offload.weights or offload.kv or offload.tables:
        on_link += streamed / _host_bandwidth(hardware, offload)
    return work.monomials, np.stack(
        [
            matrix / np.array([[peak or math.inf] for peak in peaks]),
            (vector + upcast) / (hardware.vector_peak or math.inf),
            moved / hardware.memory_bandwidth,
            on_link,
            matrix + vector,
            moved,
            sent + streamed,
            *by_role,
            upcast,
        ]
    )


def _streamed(op: Op, offload: Offload) -> float:
    """The fraction of an operator's weights that are read off the device."""
    return 1 - (1 - offload.weights) * offload.tables_kept if op.name == ENGRAM else offload.weights


def _host_bandwidth(hardware: Hardware, offload: Offload) -> float:
    host = hardware.host_bandwidth
    return host if offload.bandwidth is None else min(host, offload.bandwidth)
