"""A phase on the roofline: its passes operator by operator, their totals, and their expected times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from operator import add
from typing import Any, NamedTuple

from msgspec import Struct

from roofline.bound.roof import Bound
from roofline.core import numeric as np
from roofline.core.numeric import fraction
from roofline.graph.extents import Step, extents, on_grid
from roofline.graph.op import Op
from roofline.scenario.passes import Pass
from roofline.specs.engine import Engine
from roofline.timing.calibration import Basis
from roofline.timing.chains import Calibrate, engine_calibration
from roofline.timing.evaluation import Deferred, gather, resolve
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.estimate import locked
from roofline.timing.passes import Detail, Provenance, Timing, timing


class TensorFigures(Struct, frozen=True):
    """One operand of an operator, with numbers for its shape and bytes."""

    name: str
    role: str
    shape: tuple[Any, ...]
    format: str
    bytes: Any


class OpFigures(NamedTuple):
    """One operator on the roofline; all figures are for one of its `count` instances.

    `busy` is the fraction of the instances that run; the others are pipeline bubbles. `section` is the layer group or
    the end of the network. `arithmetic` is the format of the matrix unit, `upcast_flops` the vector work to convert
    operands to it (not part of `flops`). `intensity` and `ridge` are in FLOP/byte, `attainable` in FLOP/s, `bound_time`
    in seconds; `share` is the fraction of the phase's bound time that all instances take. `op` is the symbolic
    operator, `extents` the numbers that its sizes are evaluated for.
    """

    name: str
    kind: str
    section: str
    count: Any
    busy: Any
    arithmetic: str | None
    flops: Any
    bytes: Any
    link_bytes: Any
    weight_bytes: Any
    activation_bytes: Any
    kv_bytes: Any
    state_bytes: Any
    upcast_flops: Any
    intensity: Any
    attainable: Any
    ridge: float | None
    bound: Any
    bound_time: Any
    share: Any
    op: Op
    extents: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[TensorFigures, ...]:
        return tuple(
            TensorFigures(
                tensor.name,
                str(tensor.role),
                tuple(dim if isinstance(dim, int) else _whole(dim.evaluate(self.extents)) for dim in tensor.shape),
                tensor.format.name,
                tensor.bytes.evaluate(self.extents),
            )
            for tensor in self.op.tensors
        )


class Expectation(NamedTuple):
    """The expected time of one instance of an operator, its basis and source.

    `inside`: whether the shape is within the range of the fitted measurements.
    """

    time: Estimate
    basis: Basis
    source: str
    inside: Any


_WORK = slice(3, None)
"""Rows of `Placement.summary` that count work; the rows before are times."""


class Phase:
    """The forward passes of one phase on the roofline: totals and operators.

    Figures are numbers for a single workload and arrays of the grid's shape for a grid. `bound_time` sums the bound
    times of the operators, which run sequentially; `bound` is what limits most of it.
    """

    def __init__(
        self,
        name: str,
        passes: tuple[Pass, ...],
        shape: tuple[int, ...],
        engine: Engine,
        calibrate: Calibrate = engine_calibration,
    ) -> None:
        self.name = name
        self.passes = passes
        eager = any(run.eager and engine.graphs_on(run.placement.hardware) for run in passes)
        self.engine = engine.without_graphs() if eager else engine
        self._shape = shape
        self._expected: Estimate | None = None
        self._calibrate = calibrate

    def __repr__(self) -> str:
        return f"Phase({self.name}, {len(self.passes)} passes, engine {self.engine.name})"

    def timed(self, run: Pass, engine: Engine | None = None) -> Timing:
        """The kernels of a pass, on this phase's engine by default."""
        engine = engine or self.engine
        hardware = run.placement.hardware.unlimited or run.placement.hardware
        prompts = self.name != "decode" and run.placement.network.exchange is not None
        return timing(run.placement, engine, self._calibrate(hardware, engine), prompts)

    @cached_property
    def _values(self) -> list[Any]:
        return [run.placement.values(run.step) for run in self.passes]

    @cached_property
    def _totals(self) -> Any:
        """The rows of `Placement.summary` over all passes; pipeline bubbles take time without work."""
        summaries = []
        for run, values in zip(self.passes, self._values, strict=True):
            summary = self._shaped(run.placement.summary(values), run.step)
            if not (np.all(run.repeat == 1) and np.all(run.busy == 1)):
                summary = summary * run.repeat
                summary[_WORK] = summary[_WORK] * run.busy
            summaries.append(summary)
        return locked(summaries[0] if len(summaries) == 1 else sum(summaries[1:], start=summaries[0]))[0]

    def _shaped(self, flat: Any, step: Step) -> Any:
        return on_grid(flat, step, self._shape)

    def _plain(self, value: Any, scalar: type[float] | type[bool] = float) -> Any:
        return value if self._shape else scalar(value)

    @property
    def bound_time(self) -> Any:
        """The bound time in seconds."""
        return self._plain(self._totals[0])

    @property
    def bound(self) -> Any:
        total, memory, link = self._totals[:3]
        return _choose(total - memory - link, memory, link)

    @property
    def flops(self) -> Any:
        return self._plain(self._totals[3])

    @property
    def bytes(self) -> Any:
        return self._plain(self._totals[4])

    @property
    def link_bytes(self) -> Any:
        """Bytes that a device sends to others."""
        return self._plain(self._totals[5])

    def summed(self, coefficients: Callable[[Pass], Any]) -> Any:
        """The sum over all passes of a count that is linear in their monomials, given its coefficients."""
        return self._plain(
            sum(
                self._shaped(coefficients(run) @ values, run.step) * run.repeat * run.busy
                for run, values in zip(self.passes, self._values, strict=True)
            )
        )

    @cached_property
    def ops(self) -> tuple[OpFigures, ...]:
        total_time = self.bound_time
        return tuple(
            figures
            for run, values in zip(self.passes, self._values, strict=True)
            for figures in self._of_pass(run, values, total_time)
        )

    @property
    def expected(self) -> Estimate:
        """Expected seconds on the engine: p10, p50 and p90."""
        return resolve(self.deferred())

    def deferred(self) -> Deferred[Estimate]:
        """`expected` as a generator that yields requests for kernel times, to evaluate many phases at once."""
        if self._expected is None:
            flats = yield from gather(self.deferred_pass(run) for run in self.passes)
            times = [
                Estimate(*(self._shaped(part, run.step) * run.repeat for part in flat))
                for run, flat in zip(self.passes, flats, strict=True)
            ]
            total = reduce(add, times)
            self._expected = Estimate(*locked(*(self._plain(part) for part in total)))  # no pass is below its bound
        return self._expected

    def deferred_pass(self, run: Pass) -> Deferred[Estimate]:
        """Expected seconds of one pass, for the points of its step's grid, flattened."""
        time = yield from self.timed(run).deferred(run.step, self.name, run.host)
        return time if run.slowdown == 1 else time * run.slowdown

    @cached_property
    def expected_ops(self) -> tuple[Expectation, ...]:
        """The expected time of every operator in the order of `ops`, without host time."""
        slowdown, found = self.engine.kernel_slowdown(self.name), list[Expectation]()
        for run, times, detail in self._details:
            for index, estimate in enumerate(times.operators(detail)):
                row = times.kernel_of[index]
                kernel, queries = times.kernels[row], run.step.queries
                time = Estimate(*(self._plain(slowdown * self._shaped(part, run.step)) for part in estimate))
                bound = self._plain(self._shaped(detail.bounds[index], run.step))
                inside = self._plain(self._shaped(detail.inside[row], run.step), bool)
                found.append(Expectation(time.at_least(bound), kernel.basis(queries), kernel.source(queries), inside))
        return tuple(found)

    @cached_property
    def _details(self) -> list[tuple[Pass, Timing, Detail]]:
        return [(run, times := self.timed(run), times.detail(run.step)) for run in self.passes]

    @cached_property
    def basis(self) -> Provenance:
        """The basis of most of the expected time, and the fraction of it in shapes outside the fitted ranges."""
        spent = [times.spent(detail).sum() * np.mean(run.repeat) for run, times, detail in self._details]
        run, times, detail = self._details[int(np.argmax(spent))]
        return times.basis(detail, run.step)

    @cached_property
    def hidden(self) -> Any:
        """Expected seconds of kernels that overlap with other kernels."""
        return locked(self._sum(lambda run, times, detail: times.hidden(detail, run.step, self.name)))[0]

    @cached_property
    def idle(self) -> Any:
        """Expected seconds in which no kernel runs: host time and gaps between kernels."""

        def waiting(run: Pass, times: Timing, detail: Detail) -> Any:
            time = times.idle(detail, run.step, self.name, run.host)
            return time if run.slowdown == 1 else time + (1 - 1 / run.slowdown) * resolve(self.deferred_pass(run)).mid

        return locked(self._sum(waiting))[0]

    def _sum(self, seconds: Callable[[Pass, Timing, Detail], Any]) -> Any:
        """The sum over all passes of the `seconds` of each point."""
        parts = (self._shaped(seconds(*details), details[0].step) * details[0].repeat for details in self._details)
        return self._plain(sum(parts, start=0.0))

    def _of_pass(self, run: Pass, values: Any, total_time: Any) -> list[OpFigures]:
        placement = run.placement
        numbers = extents(run.step, placement.network.rules)
        if not self._shape:
            rows = (placement.coefficients @ values)[..., 0].T.tolist()
        else:
            rows = [
                list(self._shaped(placement.coefficients[:, index] @ values, run.step))
                for index in range(len(placement.ops))
            ]
        return [_figures(run, index, row, total_time, numbers) for index, row in enumerate(rows)]


def _figures(run: Pass, index: int, row: Any, total_time: Any, numbers: Mapping[str, Any]) -> OpFigures:
    placement = run.placement
    op, count, section = placement.ops[index]
    count = count * run.repeat
    matrix, vector, memory, link, flops, moved, sent, weights, activations, kv, state, upcast = row
    compute = np.maximum(matrix, vector)
    time = np.maximum(np.maximum(compute, memory), link)
    attainable, ridge, roof = fraction(flops, time), None, placement.roofs[index]
    if roof is not None:
        # A fused kernel uses both units; its roof is that of the matrix unit.
        attainable, ridge = np.minimum(attainable, roof), roof / placement.hardware.memory_bandwidth
    return OpFigures(
        name=op.name,
        kind=str(op.kind),
        section=f"{run.label} {section}" if run.label else section,
        count=count if isinstance(count, np.ndarray) else int(count) if count == int(count) else float(count),
        busy=run.busy,
        arithmetic=placement.arithmetic[index],
        flops=flops,
        bytes=moved,
        link_bytes=sent,
        weight_bytes=weights,
        activation_bytes=activations,
        kv_bytes=kv,
        state_bytes=state,
        upcast_flops=upcast,
        intensity=fraction(flops, moved),
        attainable=attainable,
        ridge=ridge,
        bound=_choose(compute, memory, link),
        bound_time=time,
        share=fraction(count * time, total_time),
        op=op,
        extents=numbers,
    )


def _whole(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else int(value)


def _choose(compute: Any, memory: Any, link: Any) -> Any:
    if isinstance(compute, np.ndarray):
        on_device = np.where(memory > compute, str(Bound.MEMORY), str(Bound.COMPUTE))
        return np.where(link > np.maximum(compute, memory), str(Bound.LINK), on_device)
    if link > compute and link > memory:
        return Bound.LINK
    return Bound.MEMORY if memory > compute else Bound.COMPUTE
