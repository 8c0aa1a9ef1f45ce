"""Expected time of a pass: the kernels that an engine launches for a placed graph, with calibrated constants.

The engine profile lists which operators are fused. Each kernel is a row of the measurement schema
(`roofline.timing.kernels.shapes`); its time is the calibrated form of its kind (`roofline.timing.kernels`), its
interval that of the fit's residuals:

    kernel   t_k = max(form(shape; constants), bound of its operators)                    (`timing.corrections`)
    pass     t   = max(sum n_k t_k + gap N, [no CUDA graph] issue N) + step + sequence batch   (`roofline.specs.engine`)
             with overlap scheduling `sequence batch` is in the maximum
    two-batch overlap: 0.62 of the shorter of exchanges and the other n_k t_k is hidden, and each batch has half a step
    shared experts on a stream of their own: s + r - max(s, r, bounds of both) of a layer's times s, r is hidden
    ranks within a node wait for the slowest of n:   (1 + s z(n)) t_k                (`timing.waits`)
    an upcast KV cache:   t_k = (form^2 + conversion^2)^(1/2)                  (`timing.evaluation.conversion_time`)

A kernel's time is divided among its operators in proportion to their bounds, so that no operator is expected to be
faster than its bound.

Its interval is that of `roofline.timing.intervals`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.bound.roof import TIMES, Placement, blocks, monomial_values, monomials_of, values_at
from roofline.core.registry import cached
from roofline.core.result_cache import MAX_CACHED_VALUES, LruCache
from roofline.graph.extents import Step, extents, spread
from roofline.specs.engine import ROUTED_EXPERTS, SHARED_EXPERTS, Engine
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Basis, Calibration, Match
from roofline.timing.corrections import Corrections
from roofline.timing.evaluation import Counts, Deferred, Destination, conversion_time, evaluate_all, keys_of
from roofline.timing.groups import kernel_groups
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.passes import Intervals
from roofline.timing.kernels import Array
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.launches import launches
from roofline.timing.waits import waited

BLOCK = 8192
"""Grid points evaluated together: the calls of a block take as long as the work of some 2,000 points, and the times of
all kernels stay in the cache. Blocks of a quarter take a fifth to a third longer (Llama 3.1 8B, 600,000 points)."""

HostWork = Literal["step", "draft", "none"]
"""What the CPU does before a pass: schedule and sample a step, prepare a draft, or nothing (the rest of a pass)."""

_ORDER: tuple[Basis, ...] = ("calibrated", "version", "family", "engine", "pooled", "unmeasured", "bound")


OVERLAPPED = 0.62
"""What two-batch overlap saves over the shorter of exchange and computation, which share multiprocessors and memory.

DeepSeek-R1's prefill on 32 H100 is 1.27 to 1.35 times as fast with it (lmsys.org/blog/2025-05-05-large-scale-ep), where
exchanges take 0.38 of the time without.
"""


class Detail(NamedTuple):
    """Expected times of kernels: 10th, 50th and 90th percentile (3, kernels, points).

    `inside`: whether each shape lies within the fitted range. `bounds` are those of the operators, (operators, points).
    """

    times: Array
    inside: NDArray[np.bool_]
    bounds: Array

    @property
    def mid(self) -> Array:
        """The 50th percentile of each kernel, (kernels, points)."""
        return np.asarray(self.times[1])


class Provenance(NamedTuple):
    """The basis of most of a pass's time, its source, and the fraction of time in shapes outside the fitted ranges."""

    basis: Basis
    source: str
    outside: float


class KernelCall(NamedTuple):
    """The inputs of one kernel's time: op, columns, constants, the engine's factor, seconds to upcast the KV cache.

    `late` are the seconds that a step adds to a benchmark's (`Match.late`).
    """

    op: str
    columns: dict[str, Any]
    match: Match
    hardware: Hardware
    factor: float
    conversion: float
    late: float = 0.0


class Timing:
    """The kernels of a placed graph on an engine, ready to be evaluated for any workload; `number` counts them.

    `unfused`: the time of each relative to one kernel, where the engine runs several for it. `waited`: that of all
    relative to a device alone, which waits for no other. `prompts`: of a pass that computes prompts, whose tokens some
    engines exchange otherwise.
    """

    def __init__(self, placement: Placement, engine: Engine, calibration: Calibration, prompts: bool = False) -> None:
        engine = engine.on(placement.hardware)  # experts in CPU memory run on the CPU
        limited = None
        if placement.hardware.unlimited is not None:  # kernels at the full clock, bounds at the limited one
            limited, placement = placement.hardware, replace(placement, hardware=placement.hardware.unlimited)
        self.placement = placement
        self.engine = engine
        self.kernels = tuple(launches(placement, engine, calibration, prompts=prompts))
        shapes = [entry.shape for entry in self.kernels if entry.shape]
        self.monomials = monomials_of([size for shape in shapes for size in shape.sizes.values()])
        self._counts = np.array([entry.count for entry in self.kernels])
        several = {} if placement.hardware.kind == "cpu" else dict(engine.unfused)
        apart = [several.get(placement.ops[entry.parts[0]][0].kind, (1.0, 1.0)) for entry in self.kernels]
        issued = [entry.launches * each for entry, (each, _) in zip(self.kernels, apart, strict=True)]
        self.number = float(self._counts @ issued)
        self.unfused = np.array([factor for _, factor in apart])
        self.waited = waited(placement)
        self._groups = kernel_groups(self.kernels, self.monomials, placement, engine)
        self.corrections = Corrections(placement, engine, self.kernels, limited)

    @cached_property
    def _intervals(self) -> Intervals:
        return Intervals(self.kernels, self._counts)

    @cached_property
    def branches(self) -> tuple[tuple[list[int], list[int]], ...]:
        """Rows of the kernels of shared experts and of routed experts, for each section that has both."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for row, entry in enumerate(self.kernels):
            name = self.placement.ops[entry.parts[0]][0].name
            for branch, names in enumerate((SHARED_EXPERTS, ROUTED_EXPERTS)):
                if name in names:
                    found.setdefault(entry.section, ([], []))[branch].append(row)
        return tuple(pair for pair in found.values() if all(pair))

    def detail(self, step: Step) -> Detail:
        """The times of every kernel, for the points of `step`'s grid, flattened."""
        values, own = self._values(step)
        targets = self._targets(own)
        evaluate_all(target.evaluation for target in targets)
        return self._detail(values, targets)

    def _targets(self, own: Array, merged: Sequence[Destination | None] = ()) -> list[Destination]:
        """The evaluations of all groups at some points; `merged` holds those that exist already."""
        found = [[target] if target else group.targets(own) for group, target in zip_longest(self._groups, merged)]
        return [target for targets in found for target in targets]

    def _values(self, step: Step) -> tuple[Array, Array]:
        """The values of the monomials of operators, and of kernels."""
        numbers, grid = extents(step, self.placement.network.rules), step.shape
        return values_at(self.placement.monomials, numbers, grid), values_at(self.monomials, numbers, grid)

    def kernel_call(self, row: int, step: Step) -> KernelCall | None:
        """The inputs of one kernel's time at a single workload; None where nothing was measured."""
        own = monomial_values(self.monomials, step, self.placement.network)
        call, time = None, 0.0
        for target in self._targets(own):
            group = target.evaluation.group
            if row not in group.members:
                continue
            index = int(np.flatnonzero(group.members == row)[0])
            one = {
                name: np.broadcast_to(value, (len(group.members), 1))[index : index + 1] if np.ndim(value) else value
                for name, value in target.evaluation.columns.items()
            }
            if "m" in one:
                one["m"] = np.maximum(one["m"], 1.0)
            if "kv_len" in one:
                one["kv_len"] = keys_of(one)
            evaluate_all([target.evaluation])
            own_time = float(target.found.mid[index, 0])
            if call is not None and target.join is not None and target.join(own_time, time) != own_time:
                continue
            match, hardware, time = group.match, group.hardware, own_time
            if group.other is not None:
                mids = [found.expected(one, hardware).mid for found in (match, group.other)]
                match = match if mids[0] <= mids[1] else group.other
            op = group.op if (chosen := match.chosen(one)) is match else chosen.fit.op
            upcast = float(np.sum(conversion_time(one, group.conversion, hardware))) if group.conversion else 0.0
            call = KernelCall(op, one, chosen, hardware, group.factor, upcast, match.late)
        return call

    def deferred(self, step: Step, phase: str, host: HostWork = "step") -> Deferred[Estimate]:
        """Expected seconds of one pass of `phase` (prefill or decode), for the points of the grid, flattened."""
        if math.prod(step.shape) > MAX_CACHED_VALUES:
            return (yield from self._deferred(step, phase, host))
        key = (self, phase, host)
        known, points = _PASSES.get(key) or {}, step.points
        met = [known.get(point) for point in points]
        if None not in met:
            return Estimate(*np.array(met).T)
        found = yield from self._deferred(step, phase, host)
        if len(known) > MAX_CACHED_VALUES:
            known = {}
        known.update(zip(points, zip(*(part.tolist() for part in found), strict=True), strict=True))
        _PASSES.put(key, known)
        return found

    def _deferred(self, step: Step, phase: str, host: HostWork) -> Deferred[Estimate]:
        values, own = self._values(step)
        batch, tokens = _flat(step.batch, step), _flat(step.batch * step.queries, step)
        counts: dict[bytes, Counts] = {}
        merged = [group.distinct_rows(own, counts) for group in self._groups]
        parts, start = [], 0
        for block, mine in zip(blocks(values, BLOCK), blocks(own, BLOCK), strict=True):
            stop = start + block.shape[1]
            targets = self._targets(mine, [target and target.block(start, stop) for target in merged])
            yield [target.evaluation for target in targets]
            detail = self._detail(block, targets)
            bound = self.placement.total_time(block)
            parts.append(self._pass(detail, batch[start:stop], tokens[start:stop], bound, phase, host))
            start = stop
        if len(parts) == 1:
            return parts[0]
        return Estimate(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _detail(self, values: Array, targets: Iterable[Destination]) -> Detail:
        times = self.placement.coefficients[:TIMES] @ values
        bounds = np.maximum.reduce(times)
        corrections = self.corrections
        floor = corrections.parts @ bounds
        expected, inside = np.zeros((3, *floor.shape)), np.zeros(floor.shape, dtype=bool)
        corrections.apply_unmeasured(times, expected)
        for target in targets:
            target.write(expected, inside)
        expected *= self.unfused[:, None]
        unpacked = corrections.unpacking_time(values)
        corrections.apply_conversions(times, unpacked, expected)
        corrections.apply_power_limit(times, unpacked, expected)
        np.maximum(expected[:2], floor, out=expected[:2])
        corrections.apply_link(times, expected)
        np.maximum(expected[2], expected[1], out=expected[2])
        expected *= self.waited
        if np.count_nonzero(floor) < floor.size:
            expected[:, floor <= 0] = 0.0
        return Detail(expected, inside, bounds)

    def _pass(self, detail: Detail, batch: Array, tokens: Array, bound: Array, phase: str, host: HostWork) -> Estimate:
        """The time of a pass from its kernels, never below its bound (the module's formula)."""
        busy, slower = self._busy(detail, batch, tokens, phase), self.engine.kernel_slowdown(phase)
        mid = np.maximum(busy + self._between(busy, batch, host), bound)
        left = self.engine["kernel_error"] * (self.engine["decode_error"] if phase == "decode" else 1.0)
        found = self._intervals.around(mid, detail.times[1:] - detail.times[:-1], slower * left, self.engine.spread)
        if (hosts := self.engine["hosts"]) > 1:
            fast, slow = (self._busy(detail, batch, tokens, phase, other) for other in (1 / hosts, hosts))
            below, above = np.hypot(mid - found.low, busy - fast), np.hypot(found.high - mid, slow - busy)
            found = Estimate(mid - below, mid, mid + above)
        return found._replace(low=np.maximum(found.low, bound))

    def _busy(self, detail: Detail, batch: Array, tokens: Array, phase: str, host: float = 1.0) -> Array:
        """Seconds of a pass in which the device runs kernels or waits for launches, of a `host` that much slower."""
        engine, number = self.engine, self.number
        kernels = self._counts @ detail.mid - self._hidden(detail, tokens, phase)
        device: Array = self.engine.kernel_slowdown(phase) * kernels + engine["gap"] * number
        if phase not in engine.graphs:
            return np.maximum(device, host * engine["issue"] * number)
        if not engine.replayed:
            return device
        return np.where(batch > engine.replayed, np.maximum(device, engine.launched * number), device)

    def _between(self, busy: Array, batch: Array, host: HostWork) -> Any:
        """CPU seconds between a pass and the one before."""
        if host == "step":
            return self._step + self.engine.scheduling(busy, batch)
        return self.engine["draft_step"] if host == "draft" else 0.0

    def idle(self, detail: Detail, step: Step, phase: str, host: HostWork = "step") -> Array:
        """Seconds of a pass in which no kernel runs, for the points of the grid, flattened.

        The device waits for the CPU: for its work between passes, for kernel launches, in gaps between kernels.
        """
        batch, tokens = _flat(step.batch, step), _flat(step.batch * step.queries, step)
        busy = self._busy(detail, batch, tokens, phase)
        waiting = busy - self.engine.kernel_slowdown(phase) * (
            self._counts @ detail.mid - self._hidden(detail, tokens, phase)
        )
        time: Array = waiting + self._between(busy, batch, host)
        return time

    @property
    def _step(self) -> float:
        """CPU seconds of a pass, shared by the batches of two-batch overlap."""
        step: float = self.engine["step"] / self.placement.network.overlap_batches
        return step

    @property
    def overlappable(self) -> frozenset[int]:
        """The collective kernels that two-batch overlap may hide."""
        return frozenset(self.kernel_of[index] for index in self.placement.all_to_alls.tolist())

    @property
    def apart(self) -> frozenset[int]:
        """The kernels on devices of experts alone."""
        return frozenset(self.kernel_of[index] for index in self.placement.experts.tolist()) - self.overlappable

    @cached_property
    def _overlappable_counts(self) -> tuple[Array, Array]:
        """The count of each overlappable collective, and of each kernel on devices of experts; 0 for the others."""
        rows, found = np.arange(len(self.kernels)), (self.overlappable, self.apart)
        sent, apart = (np.where(np.isin(rows, list(part)), self._counts, 0.0) for part in found)
        return sent, apart

    def hidden(self, detail: Detail, step: Step, phase: str) -> Array:
        """Seconds of kernels that overlap with others, for each point."""
        return self._hidden(detail, _flat(step.batch * step.queries, step), phase)

    def _hidden(self, detail: Detail, tokens: Array, phase: str) -> Array:
        if self.placement.all_to_alls.size:
            sent, experts = (counts @ detail.mid for counts in self._overlappable_counts)
            both = self.placement.hidden(self._counts @ detail.mid, sent, experts)
            return both if self.placement.network.ping_pong else OVERLAPPED * both
        overlapped = np.zeros(tokens.shape)
        engine, family = self.engine, self.placement.hardware.family
        if engine.shared_stream and phase in engine.graphs and family in (engine.shared_on or (family,)):
            for shared, routed in self.branches:
                one, other = self.branch(detail, shared), self.branch(detail, routed)
                bound = self.branch_bound(detail, [*shared, *routed])
                overlapped += one + other - np.maximum(np.maximum(one, other), bound)
            overlapped[tokens > engine.shared_stream] = 0.0
        return overlapped

    def branch(self, detail: Detail, rows: list[int]) -> Array:
        """Seconds of some kernels in a pass, for each point."""
        time: Array = self._counts[rows] @ detail.mid[rows]
        return time

    def branch_bound(self, detail: Detail, rows: list[int]) -> Array:
        """Seconds of some kernels in a pass at their operators' bounds, for each point."""
        time: Array = self._counts[rows] @ (self.corrections.parts[rows] @ detail.bounds)
        return time

    def operators(self, detail: Detail) -> tuple[Estimate, ...]:
        """The expected time of one instance of each operator: its kernel's time, divided in proportion to bounds."""
        found: list[Estimate] = [Estimate(0.0, 0.0, 0.0)] * len(self.placement.ops)
        floor = self.corrections.parts @ detail.bounds
        for row, entry in enumerate(self.kernels):
            whole = np.where(floor[row] > 0, floor[row], 1.0)
            for index in entry.parts:
                share = detail.bounds[index] / whole
                found[index] = Estimate(*(detail.times[:, row] * share))
        return tuple(found)

    @property
    def kernel_of(self) -> tuple[int, ...]:
        """The kernel that each operator is part of."""
        return self.corrections.kernel_of

    def spent(self, detail: Detail) -> Array:
        """Seconds of each kernel in a pass, (kernels, points)."""
        return self._counts[:, np.newaxis] * detail.mid

    def basis(self, detail: Detail, step: Step) -> Provenance:
        """The provenance of most of the time of `step`."""
        spent, queries = self.spent(detail), step.queries
        by_basis = dict.fromkeys(_ORDER, 0.0)
        by_source: dict[tuple[Basis, str], float] = defaultdict(float)
        for entry, time in zip(self.kernels, spent.sum(axis=1), strict=True):
            by_basis[entry.basis(queries)] += float(time)
            by_source[entry.basis(queries), entry.source(queries)] += float(time)
        basis = max(_ORDER, key=lambda name: by_basis[name])
        source = max((key for key in by_source if key[0] == basis), key=lambda key: by_source[key])[1]
        measured = np.array([entry.kind not in PASSES and bool(entry.matches) for entry in self.kernels])
        outside = float((spent * ~detail.inside)[measured].sum() / (spent.sum() or 1.0))
        return Provenance(basis, source, outside)


def _flat(value: Any, step: Step) -> Array:
    """A number, or an array, for the points of a step's grid, flattened."""
    flat: Array = spread(np.asarray(value, float), step.shape).reshape(-1)
    return flat


_PASSES: LruCache[dict[tuple[float, ...], tuple[float, float, float]]] = LruCache(1024)
"""The times (low, mid, high) of the passes of a timing in a phase, by what precedes them, by point.

A setting that changes one phase leaves the other's passes as they are, and often the draft model's; more ranks of data
parallelism have batches that fewer ranks had before.
"""


@cached(maxsize=512)
def timing(placement: Placement, engine: Engine, calibration: Calibration, prompts: bool = False) -> Timing:
    """The kernels of `placement` on `engine`, with the constants of `calibration`; `prompts` as of `Timing`."""
    return Timing(placement, engine, calibration, prompts)
