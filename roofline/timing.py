"""Expected time: a placed graph, run by the kernels of an engine, with the constants of a calibration.

The engine says which operators one kernel computes. Each kernel is a row of the measurement schema
(`roofline.kernels.shapes`), and its time is that of the calibrated form of its kind (`roofline.kernels`), with the
interval of the residuals that the fit left:

    kernel   t_k = max(form(shape; constants), bound of its operators)
    weights that are converted first:   t_k = (form^2 + (conversion / dequantisation)^2)^(1/2)
    integers in blocks with scales:     t_k = (form^2 + (products x integer_blocks / (1024 units clock))^2)^(1/2)
    pass     t   = max(sum n_k t_k + gap N, [no CUDA graph] issue N) + step + sequence batch      (`roofline.engine`)
             with overlap scheduling `sequence batch` is in the maximum
    two batches that take turns: of sum n_k t_k the shorter of exchanges and the rest is hidden, each has half a step
    shared experts beside routed ones:  s + r - max(s, r, bounds of both) of a layer's s and r is hidden
    all-reduces of the engine's own:    t_k = min(form, latency + 2 x link)
    a cache in a format of others:      t_k = (form^2 + conversion^2)^(1/2)        (`roofline.batches.conversion_time`)

What nobody measured takes `launch + ((compute / 0.6)^2 + (memory / 0.8)^2)^(1/2)`. Every operator gets the part of its
kernel's time that it has of the kernel's bound, so that no operator is expected faster than its speed of light.

Intervals: a kernel's error e_k (10th or 90th percentile less the middle) is shared in part by other kernels. With the
correlation r of shapes of one kind, and R of kinds,

    kind     E_K^2 = r (sum n_k e_k)^2 + (1 - r) sum (n_k e_k)^2,          the n_k layers of one shape err together
    pass     E^2   = R (sum E_K)^2 + (1 - R) sum E_K^2 + (t x spread of the engine)^2
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.batches import Asked, Asking, Counts, answer, batches, conversion_time
from roofline.calibration import Basis, Calibration, Match
from roofline.engine import ROUTED_EXPERTS, SHARED_EXPERTS, Engine
from roofline.extents import Step, extents, spread
from roofline.hardware import Hardware
from roofline.kernels import Array
from roofline.kernels.elementwise import PASSES
from roofline.kernels.parameters import smooth_maximum, units
from roofline.launches import ATTENTION, UNMEASURED, launches
from roofline.parallel import Collective
from roofline.remembered import SMALL, Remembered
from roofline.roof import TIMES, Placement, Row, blocks, hidden, monomial_values, monomials_of, values_at

WITHIN_KIND: Mapping[str, tuple[float, float]] = {
    "gemm": (0.35, 0.43),
    "attention_prefill": (0.25, 0.63),
    "attention_decode": (0.36, 0.61),
    "moe": (0.18, 0.6),
    "collective": (0.35, 0.35),
}
"""Correlation r of the errors of different shapes of one kind: with the hardware's own constants, and with those of
others (`python -m validate.correlation`: held-out rows at the same number of tokens; experts without w4a16_mxfp4)."""

UNMEASURED_KIND = (0.5, 0.5)
"""The same for kernels that nobody measured."""

ACROSS_KINDS = (0.0, 0.15)
"""Correlation R of the errors of different kinds, likewise."""

LAUNCH = 2e-6
"""Seconds: start and end of a small kernel in a step."""

COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.6, 0.8, 0.75
"""Achievable fractions of the peaks, of memory bandwidth and of links, for kernels that nobody measured."""

OWN_TRIPS = 2.0
"""Times that an engine's own all-reduce crosses a link, of what a ring sends at its full bandwidth. With 8 us that is
12, 15 and 22 us for 0.5, 1 and 2 MB on four H100; the fastest of vLLM's kernels take 10, 14 and 21 us on four devices
(vllm-project/vllm, pull request 24532)."""

BLOCK = 4096
"""Grid points evaluated together, so that the times of all kernels stay in the cache."""

_ORDER: tuple[Basis, ...] = ("calibrated", "family", "pooled", "bound")


Reading = Literal["bound", "low", "mid", "high"]
"""How times are read: at the speed of light, or at one of the three figures of an `Estimate`."""

READINGS: tuple[Reading, ...] = ("bound", "low", "mid", "high")


class Estimate(NamedTuple):
    """Expected seconds: 10th, 50th and 90th percentile; numbers, or arrays of a grid."""

    low: Any
    mid: Any
    high: Any

    def plus(self, other: Estimate) -> Estimate:
        """The time of both, one after the other; their errors are one and the same."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: Any) -> Estimate:
        """The time of `factor` repetitions."""
        return Estimate(*(value * factor for value in self))


class Detail(NamedTuple):
    """Expected times of kernels (kernels, points), whether each shape lies within the fitted range, and bounds.

    `bounds` are those of the operators, (operators, points).
    """

    low: Array
    mid: Array
    high: Array
    inside: NDArray[np.bool_]
    bounds: Array


class Ground(NamedTuple):
    """What most of a pass's time rests on, its source, and the share of time in shapes outside of the fitted ranges."""

    basis: Basis
    source: str
    outside: float


class Measured(NamedTuple):
    """A kernel at one workload: its op and columns, its constants, and a factor of the engine on its time.

    `conversion` is the seconds that converting a foreign cache takes.
    """

    op: str
    columns: dict[str, Any]
    match: Match
    hardware: Hardware
    factor: float
    conversion: float


class Timing:
    """The kernels of a placed graph on an engine, ready to be evaluated for any workload."""

    def __init__(self, placement: Placement, engine: Engine, calibration: Calibration) -> None:
        self.placement = placement
        self.engine = engine
        self.kernels = tuple(launches(placement, engine, calibration))
        shapes = [entry.shape for entry in self.kernels if entry.shape]
        self.monomials = monomials_of([size for shape in shapes for size in shape.sizes.values()])
        self._counts = np.array([entry.count for entry in self.kernels])
        self._kind_of = [entry.kind for entry in self.kernels]
        self._batches = batches(self.kernels, self.monomials, placement, engine)

    @cached_property
    def _parts(self) -> Array:
        """1 where an operator (column) is part of a kernel (row)."""
        members = np.zeros((len(self.kernels), len(self.placement.ops)))
        members[self.kernel_of, range(len(self.placement.ops))] = 1.0
        return members

    @cached_property
    def _kinds(self) -> Array:
        """How often each kernel (column) runs, in the row of its kind: errors of one kind are alike."""
        kinds = self._kind_names
        counts = np.zeros((len(kinds), len(self.kernels)))
        counts[[kinds[kind] for kind in self._kind_of], range(len(self.kernels))] = self._counts
        return counts

    @cached_property
    def _kind_names(self) -> Mapping[str, int]:
        """The kinds of its kernels, and their rows."""
        return {name: row for row, name in enumerate(dict.fromkeys(self._kind_of))}

    @cached_property
    def _shared(self) -> Array:
        """The correlation of errors within each kind, (kinds, 1)."""
        return np.array([[WITHIN_KIND.get(name, UNMEASURED_KIND)[self._inherited]] for name in self._kind_names])

    @cached_property
    def _inherited(self) -> bool:
        """Whether constants are those of other hardware."""
        measured = (entry for entry, kind in zip(self.kernels, self._kind_of, strict=True) if kind in WITHIN_KIND)
        return all(match.basis != "calibrated" for entry in measured for match in entry.matches.values())

    @cached_property
    def _unmeasured(self) -> NDArray[np.intp]:
        """Kernels without constants, in one phase at least."""
        rows = [row for row, entry in enumerate(self.kernels) if not entry.always_measured]
        return np.array(rows, dtype=np.intp)

    @cached_property
    def _guessed(self) -> Array:
        """The operators of kernels without constants, as in `_parts`."""
        parts: Array = self._parts[self._unmeasured]
        return parts

    @cached_property
    def _linked(self) -> NDArray[np.intp]:
        """Kernels that wait for what comes over a link while they compute; exchanges have it in their fits."""
        rows = self._involved(Row.LINK_TIME)
        return np.array([row for row in rows if self._kind_of[row] != "collective"], dtype=np.intp)

    @cached_property
    def _converting(self) -> NDArray[np.intp]:
        """Kernels that convert operands before they multiply them; in attention the fits include it."""
        rows = self._involved(Row.UPCAST_FLOPS)
        return np.array([row for row in rows if self._kind_of[row] not in ATTENTION], dtype=np.intp)

    @cached_property
    def scaling_factors(self) -> Array:
        """How many times longer than at its peak an operator takes to scale the sums of blocks of integers.

        A unit multiplies 1024 pairs, which are 2048 FLOP, in `integer_blocks` cycles.
        """
        factors, hardware = np.zeros(len(self.placement.ops)), self.placement.hardware
        if self.engine["integer_blocks"] and hardware.clock is not None:
            seconds = self.engine["integer_blocks"] / (units(hardware) * hardware.clock) / 2048
            peaks = zip(self.placement.arithmetic, self.placement.roofs, strict=True)
            factors[:] = [seconds * (peak or 0.0) if arithmetic == "int8" else 0.0 for arithmetic, peak in peaks]
        return factors

    @cached_property
    def _scaling(self) -> NDArray[np.intp]:
        """Kernels that multiply integers in blocks, one of which has a scale of its own."""
        return np.array(sorted({self.kernel_of[i] for i in self.scaling_factors.nonzero()[0].tolist()}), dtype=np.intp)

    @cached_property
    def reducing(self) -> Mapping[int, float]:
        """The all-reduces that the engine has a kernel of its own for, and its seconds for a tiny message."""
        placement, found = self.placement, {}
        for row, entry in enumerate(self.kernels):
            sent = placement.ops[entry.parts[0]][0].link
            if len(entry.parts) == 1 and sent is not None and sent.collective is Collective.ALL_REDUCE:
                kind, *_ = placement.hardware.link(placement.nodes.span(sent.reach)).kind.split()
                if kind in self.engine.all_reduce:
                    found[row] = self.engine.all_reduce[kind]
        return found

    @cached_property
    def branches(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Kernels of shared experts and of the routed ones beside which they run, of each section with both."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for row, entry in enumerate(self.kernels):
            name = self.placement.ops[entry.parts[0]][0].name
            for branch, names in enumerate((SHARED_EXPERTS, ROUTED_EXPERTS)):
                if name in names:
                    found.setdefault(entry.section, ([], []))[branch].append(row)
        return tuple(pair for pair in found.values() if all(pair))

    def _involved(self, what: Row) -> list[int]:
        """The kernels of which any operator does any of it, in their order."""
        doing = self.placement.coefficients[what].any(axis=1).nonzero()[0]
        return sorted({self.kernel_of[index] for index in doing.tolist()})

    @property
    def converting(self) -> frozenset[int]:
        """The kernels that convert operands before they multiply them."""
        return frozenset(self._converting.tolist())

    @property
    def scaling(self) -> frozenset[int]:
        """The kernels that multiply integers in blocks."""
        return frozenset(self._scaling.tolist())

    @property
    def linked(self) -> frozenset[int]:
        """The kernels that wait for what comes over a link while they compute."""
        return frozenset(self._linked.tolist())

    def detail(self, step: Step) -> Detail:
        """Every kernel for the points of `step`'s grid, flattened."""
        values, own = self._values(step)
        asked = self._asked(own)
        answer(entry.question for entry in asked)
        return self._detail(values, asked)

    def _asked(self, own: Array, tables: Sequence[Asked | None] = ()) -> list[Asked]:
        """What is to be known of its kernels at some points; `tables` hold it where they are given."""
        found = [table or batch.asked(own) for batch, table in zip_longest(self._batches, tables)]
        return [entry for entry in found if entry is not None]

    def _values(self, step: Step) -> tuple[Array, Array]:
        """The monomials' values of operators, and of kernels."""
        numbers, grid = extents(step, self.placement.network.rules), step.shape
        return values_at(self.placement.monomials, numbers, grid), values_at(self.monomials, numbers, grid)

    def measured(self, row: int, step: Step) -> Measured | None:
        """What the time of one kernel is computed from at a single workload; None where nothing was measured."""
        own = monomial_values(self.monomials, step, self.placement.network)
        for batch in self._batches:
            asked = batch.asked(own) if row in batch.members else None
            if asked is None:
                continue
            index = int(np.flatnonzero(batch.members == row)[0])
            columns = asked.question.columns
            one = {
                name: np.broadcast_to(value, (len(batch.members), 1))[index : index + 1] if np.ndim(value) else value
                for name, value in columns.items()
            }
            if "m" in one:
                one["m"] = np.maximum(one["m"], 1.0)
            if "kv_len" in one:
                one["kv_len"] = np.maximum(one["kv_len"], one["q_len"])
            match = batch.match
            if batch.other is not None:
                mids = [found.expected(one, batch.hardware).mid for found in (match, batch.other)]
                match = match if mids[0] <= mids[1] else batch.other
            converting = (
                float(np.sum(conversion_time(one, batch.conversion, batch.hardware))) if batch.conversion else 0.0
            )
            return Measured(batch.op, one, match, batch.hardware, batch.factor, converting)
        return None

    def expecting(self, step: Step, phase: str) -> Asking[Estimate]:
        """Expected seconds of one pass of `phase` (prefill or decode), for the points of the grid, flattened.

        It asks for the times of its kernels (`roofline.batches.answered`).
        """
        if math.prod(step.shape) > SMALL:
            return (yield from self._expecting(step, phase))
        known, points = _PASSES.find((self, phase)) or {}, step.points
        met = [known.get(point) for point in points]
        if None not in met:
            return Estimate(*np.array(met).T)
        found = yield from self._expecting(step, phase)
        if len(known) > SMALL:
            known = {}
        known.update(zip(points, zip(*(part.tolist() for part in found), strict=True), strict=True))
        _PASSES.keep((self, phase), known)
        return found

    def _expecting(self, step: Step, phase: str) -> Asking[Estimate]:
        values, own = self._values(step)
        batch, tokens = _flat(step.batch, step), _flat(step.batch * step.queries, step)
        counts: dict[bytes, Counts] = {}
        tables = [entry.table(own, counts) for entry in self._batches]
        parts, start = [], 0
        for block, mine in zip(blocks(values, BLOCK), blocks(own, BLOCK), strict=True):
            stop = start + block.shape[1]
            asked = self._asked(mine, [table and table.cut(start, stop) for table in tables])
            yield [entry.question for entry in asked]
            detail = self._detail(block, asked)
            bound = self.placement.total_time(block)
            parts.append(self._pass(detail, batch[start:stop], tokens[start:stop], bound, phase))
            start = stop
        if len(parts) == 1:
            return parts[0]
        return Estimate(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _detail(self, values: Array, asked: Iterable[Asked]) -> Detail:
        times = self.placement.coefficients[:TIMES] @ values
        bounds = times.max(axis=0)
        floor = self._parts @ bounds
        low, mid, high = (np.zeros(floor.shape) for _ in range(3))
        inside = np.zeros(floor.shape, dtype=bool)
        self._guess(times, low, mid, high)
        for entry in asked:
            rows, points, found = entry.rows, entry.points, entry.found
            low[rows, points], mid[rows, points], high[rows, points] = found[:3]
            inside[rows, points] = found.inside
        self._reduce(times, low, mid, high)
        self._convert(times, low, mid, high)
        self._scale(times, low, mid, high)
        np.maximum(low, floor, out=low)
        np.maximum(mid, floor, out=mid)
        self._wait(times, low, mid, high)
        np.maximum(high, mid, out=high)
        if not floor.all():
            for part in (low, mid, high):
                part[floor <= 0] = 0.0
        return Detail(low, mid, high, inside, bounds)

    def _guess(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels without constants: their bound at typical efficiencies."""
        if not self._unmeasured.size:
            return
        rows, parts = self._unmeasured, self._guessed
        compute, memory = times[: Row.MEMORY_TIME].max(axis=0), times[Row.MEMORY_TIME]
        guess = LAUNCH + smooth_maximum(parts @ compute / COMPUTE_SHARE, parts @ memory / MEMORY_SHARE, 2.0)
        low[rows], mid[rows], high[rows] = guess * UNMEASURED.low, guess, guess * UNMEASURED.high

    def _reduce(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """All-reduces that the engine has a kernel of its own for: it takes the faster one."""
        if not self.reducing:
            return
        rows = list(self.reducing)
        latency = np.array([*self.reducing.values()])[:, np.newaxis]
        own = latency + OWN_TRIPS * (self._parts[rows] @ times[Row.LINK_TIME])
        faster = np.minimum(own / np.where(mid[rows] > 0, mid[rows], np.inf), 1.0)
        low[rows], mid[rows], high[rows] = low[rows] * faster, mid[rows] * faster, high[rows] * faster

    def _convert(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that convert weights before they multiply them."""
        if not self._converting.size:
            return
        rows = self._converting
        vector = self._parts[rows] @ times[Row.VECTOR_TIME] / self.engine["dequantisation"]
        _beside(rows, vector, low, mid, high)

    def _scale(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that multiply integers in blocks: sums of every block are scaled one by one."""
        if not self._scaling.size:
            return
        rows = self._scaling
        _beside(rows, (self._parts[rows] * self.scaling_factors) @ times[Row.MATRIX_TIME], low, mid, high)

    def _wait(self, times: Array, low: Array, mid: Array, high: Array) -> None:
        """Kernels that wait for what comes over a link."""
        if not self._linked.size:
            return
        rows = self._linked
        exchange = self._parts[rows] @ times[Row.LINK_TIME] / LINK_SHARE
        low[rows], mid[rows] = np.maximum(low[rows], exchange * UNMEASURED.low), np.maximum(mid[rows], exchange)
        high[rows] = np.maximum(high[rows], exchange * UNMEASURED.high)

    def _pass(self, detail: Detail, batch: Array, tokens: Array, bound: Array, phase: str) -> Estimate:
        """The time of a pass from its kernels, never below its bound: see the module for the formula."""
        busy, slower = self._busy(detail, tokens, phase), self.engine.slower(phase)
        mid = busy + self._step + self.engine.waited(busy, batch)
        errors = np.concatenate([detail.mid - detail.low, detail.high - detail.mid], axis=1)
        wrong, points = slower * self._combined(errors), mid.size
        below, above = wrong[:points], wrong[points:]
        low, high = self.engine.spread
        return Estimate(
            np.maximum(mid - np.hypot(below, mid * (1 - low)), bound),
            mid,
            mid + np.hypot(above, mid * (high - 1)),
        )

    def _busy(self, detail: Detail, tokens: Array, phase: str) -> Array:
        """Seconds that the device computes in a pass, or waits for its kernels."""
        engine, number = self.engine, float(self._counts.sum())
        kernels = self._counts @ detail.mid - self._hidden(detail, tokens, phase)
        device: Array = self.engine.slower(phase) * kernels + engine["gap"] * number
        return device if phase in engine.graphs else np.maximum(device, engine["issue"] * number)

    def host_time(self, detail: Detail, step: Step, phase: str) -> Array:
        """Seconds of a pass in which no kernel runs, for the points of the grid, flattened.

        The device waits for the host: for what it does between passes, for the issue of kernels, in gaps between them.
        """
        tokens = _flat(step.batch * step.queries, step)
        busy = self._busy(detail, tokens, phase)
        waiting = busy - self.engine.slower(phase) * (self._counts @ detail.mid - self._hidden(detail, tokens, phase))
        time: Array = waiting + self._step + self.engine.waited(busy, _flat(step.batch, step))
        return time

    @property
    def _step(self) -> float:
        """Seconds of the host for a pass: batches that take turns share them."""
        step: float = self.engine["step"] / self.placement.network.turns
        return step

    @property
    def exchanging(self) -> frozenset[int]:
        """The kernels that may be hidden."""
        return frozenset(self.kernel_of[index] for index in self.placement.exchanges.tolist())

    @cached_property
    def _exchanges(self) -> Array:
        """How often each kernel runs that may be hidden."""
        counts: Array = np.zeros(len(self.kernels))
        rows = sorted(self.exchanging)
        counts[rows] = self._counts[rows]
        return counts

    def hidden(self, detail: Detail, step: Step, phase: str) -> Array:
        """Seconds of its kernels' that run beside others, for each point."""
        return self._hidden(detail, _flat(step.batch * step.queries, step), phase)

    def _hidden(self, detail: Detail, tokens: Array, phase: str) -> Array:
        if self.placement.exchanges.size:
            exchanged: Array = hidden(self._exchanges @ detail.mid, self._counts @ detail.mid)
            return exchanged
        beside = np.zeros(detail.mid.shape[1])
        if self.engine.shared_stream and phase in self.engine.graphs:
            for shared, routed in self.branches:
                one, other = self.branch(detail, shared), self.branch(detail, routed)
                bound = self.branch_bound(detail, [*shared, *routed])
                beside += one + other - np.maximum(np.maximum(one, other), bound)
            beside[tokens > self.engine.shared_stream] = 0.0
        return beside

    def branch(self, detail: Detail, rows: list[int]) -> Array:
        """Seconds of some kernels in a pass, for each point."""
        time: Array = self._counts[rows] @ detail.mid[rows]
        return time

    def branch_bound(self, detail: Detail, rows: list[int]) -> Array:
        """Seconds of the operators of some kernels at their bounds in a pass, for each point."""
        time: Array = self._counts[rows] @ (self._parts[rows] @ detail.bounds)
        return time

    def _combined(self, errors: Array) -> Array:
        """The error of the sum over kernels, from those of single ones."""
        together, apart = (self._kinds @ errors) ** 2, self._kinds**2 @ errors**2
        squares = self._shared * together + (1 - self._shared) * apart
        together, apart = np.sqrt(squares).sum(axis=0) ** 2, squares.sum(axis=0)
        across = ACROSS_KINDS[self._inherited]
        combined: Array = np.sqrt(across * together + (1 - across) * apart)
        return combined

    def operators(self, detail: Detail) -> tuple[Estimate, ...]:
        """The expected time of each operator, one instance: its part of its kernel's, in proportion to bounds."""
        found: list[Estimate] = [Estimate(0.0, 0.0, 0.0)] * len(self.placement.ops)
        floor = self._parts @ detail.bounds
        for row, entry in enumerate(self.kernels):
            whole = np.where(floor[row] > 0, floor[row], 1.0)
            for index in entry.parts:
                share = detail.bounds[index] / whole
                found[index] = Estimate(detail.low[row] * share, detail.mid[row] * share, detail.high[row] * share)
        return tuple(found)

    @cached_property
    def kernel_of(self) -> tuple[int, ...]:
        """The kernel that each operator is part of."""
        owner = {index: row for row, entry in enumerate(self.kernels) for index in entry.parts}
        return tuple(owner[index] for index in range(len(self.placement.ops)))

    def spent(self, detail: Detail) -> Array:
        """Seconds of each kernel in a pass, (kernels, points)."""
        return self._counts[:, np.newaxis] * detail.mid

    def basis(self, detail: Detail, step: Step) -> Ground:
        """What most of the time of `step` rests on."""
        spent, queries = self.spent(detail), step.queries
        by_basis = dict.fromkeys(_ORDER, 0.0)
        for entry, time in zip(self.kernels, spent.sum(axis=1), strict=True):
            by_basis[entry.basis(queries)] += float(time)
        basis = max(_ORDER, key=lambda name: by_basis[name])
        source = next(entry.source(queries) for entry in self.kernels if entry.basis(queries) == basis)
        measured = np.array([entry.kind not in PASSES and bool(entry.matches) for entry in self.kernels])
        outside = float((spent * ~detail.inside)[measured].sum() / (spent.sum() or 1.0))
        return Ground(basis, source, outside)


def _flat(value: Any, step: Step) -> Array:
    """A number, or an array, for the points of a step's grid, flattened."""
    flat: Array = spread(np.asarray(value, float), step.shape).reshape(-1)
    return flat


def _beside(rows: NDArray[np.intp], work: Array, low: Array, mid: Array, high: Array) -> None:
    """Kernels with seconds of further work, which overlaps with theirs: (kernel^2 + work^2)^(1/2)."""
    slower = smooth_maximum(mid[rows], work, 2.0) / np.where(mid[rows] > 0, mid[rows], 1.0)
    low[rows], mid[rows], high[rows] = low[rows] * slower, mid[rows] * slower, high[rows] * slower


_PASSES: Remembered[dict[bytes, tuple[float, float, float]]] = Remembered(1024)
"""The passes of a timing in a phase, by point: low, mid, high.

What changes how one phase runs leaves those of the other as they are, and often those of a draft; ranks of data
parallelism meet again the batches that more devices had less of.
"""


@lru_cache(maxsize=512)
def timing(placement: Placement, engine: Engine, calibration: Calibration) -> Timing:
    """The kernels of `placement` on `engine`, with the constants of `calibration`."""
    return Timing(placement, engine, calibration)
