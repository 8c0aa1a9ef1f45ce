"""Expected time: a placed graph, run by the kernels of an engine, with the constants of a calibration.

The engine says which operators one kernel computes. Each kernel is a row of the measurement schema
(`roofline.timing.kernels.shapes`), and its time is that of the calibrated form of its kind (`roofline.timing.kernels`),
with the interval of the residuals that the fit left:

    kernel   t_k = max(form(shape; constants), bound of its operators)                    (`timing.corrections`)
    pass     t   = max(sum n_k t_k + gap N, [no CUDA graph] issue N) + step + sequence batch   (`roofline.specs.engine`)
             with overlap scheduling `sequence batch` is in the maximum
    two batches that take turns: of sum n_k t_k the shorter of exchanges and the rest is hidden, each has half a step
    shared experts beside routed ones:  s + r - max(s, r, bounds of both) of a layer's s and r is hidden
    a cache in a format of others:      t_k = (form^2 + conversion^2)^(1/2)    (`timing.batches.conversion_time`)

Every operator gets the part of its kernel's time that it has of the kernel's bound, so that no operator is expected
faster than its speed of light.

Either half of the interval of a pass is (E^2 + (t x spread of the engine)^2)^(1/2), with E of its kernels' errors
(`roofline.timing.intervals`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.bound.roof import TIMES, Placement, blocks, hidden, monomial_values, monomials_of, values_at
from roofline.core.cache import SMALL, Remembered
from roofline.graph.extents import Step, extents, spread
from roofline.specs.engine import ROUTED_EXPERTS, SHARED_EXPERTS, Engine
from roofline.specs.hardware import Hardware
from roofline.timing.batches import Asked, Asking, Counts, answer, batches, conversion_time
from roofline.timing.calibration import Basis, Calibration, Match
from roofline.timing.corrections import Corrections
from roofline.timing.estimate import Estimate
from roofline.timing.intervals import Intervals
from roofline.timing.kernels import Array
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.launches import launches

BLOCK = 4096
"""Grid points evaluated together, so that the times of all kernels stay in the cache."""

_ORDER: tuple[Basis, ...] = ("calibrated", "family", "pooled", "bound")


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
        self._batches = batches(self.kernels, self.monomials, placement, engine)
        self.corrections = Corrections(placement, engine, self.kernels)

    @cached_property
    def _intervals(self) -> Intervals:
        """How errors of its kernels add up."""
        return Intervals(self.kernels, self._counts)

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

        It asks for the times of its kernels (`roofline.timing.batches.answered`).
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
        corrections = self.corrections
        floor = corrections.parts @ bounds
        low, mid, high = (np.zeros(floor.shape) for _ in range(3))
        inside = np.zeros(floor.shape, dtype=bool)
        corrections.guess(times, low, mid, high)
        for entry in asked:
            rows, points, found = entry.rows, entry.points, entry.found
            low[rows, points], mid[rows, points], high[rows, points] = found[:3]
            inside[rows, points] = found.inside
        corrections.reduce(times, low, mid, high)
        corrections.convert(times, low, mid, high)
        corrections.scale(times, low, mid, high)
        np.maximum(low, floor, out=low)
        np.maximum(mid, floor, out=mid)
        corrections.wait(times, low, mid, high)
        np.maximum(high, mid, out=high)
        if not floor.all():
            for part in (low, mid, high):
                part[floor <= 0] = 0.0
        return Detail(low, mid, high, inside, bounds)

    def _pass(self, detail: Detail, batch: Array, tokens: Array, bound: Array, phase: str) -> Estimate:
        """The time of a pass from its kernels, never below its bound: see the module for the formula."""
        busy, slower = self._busy(detail, tokens, phase), self.engine.slower(phase)
        mid = busy + self._step + self.engine.waited(busy, batch)
        errors = np.concatenate([detail.mid - detail.low, detail.high - detail.mid], axis=1)
        wrong, points = slower * self._intervals.combined(errors), mid.size
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
        time: Array = self._counts[rows] @ (self.corrections.parts[rows] @ detail.bounds)
        return time

    def operators(self, detail: Detail) -> tuple[Estimate, ...]:
        """The expected time of each operator, one instance: its part of its kernel's, in proportion to bounds."""
        found: list[Estimate] = [Estimate(0.0, 0.0, 0.0)] * len(self.placement.ops)
        floor = self.corrections.parts @ detail.bounds
        for row, entry in enumerate(self.kernels):
            whole = np.where(floor[row] > 0, floor[row], 1.0)
            for index in entry.parts:
                share = detail.bounds[index] / whole
                found[index] = Estimate(detail.low[row] * share, detail.mid[row] * share, detail.high[row] * share)
        return tuple(found)

    @property
    def kernel_of(self) -> tuple[int, ...]:
        """The kernel that each operator is part of."""
        return self.corrections.kernel_of

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


_PASSES: Remembered[dict[bytes, tuple[float, float, float]]] = Remembered(1024)
"""The passes of a timing in a phase, by point: low, mid, high.

What changes how one phase runs leaves those of the other as they are, and often those of a draft; each of more ranks of
data parallelism has a batch that fewer ranks were asked for already.
"""


@lru_cache(maxsize=512)
def timing(placement: Placement, engine: Engine, calibration: Calibration) -> Timing:
    """The kernels of `placement` on `engine`, with the constants of `calibration`."""
    return Timing(placement, engine, calibration)
