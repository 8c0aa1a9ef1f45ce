"""Breakdowns of prefill and the mean decode step by operator, whose parts add up to TTFT and TPOT.

Operators of the same name in all sections are one part; those of a draft or encoder are labelled. The mean decode step
is the mean over all steps of the generation, per emitted token where an iteration yields several:

    bound      sum over steps of each operator's own bound time, exactly (`scenario.generation.sum_steps`) / steps
    bytes      likewise
    expected   each operator's part of its kernel at the three quadrature contexts of TPOT, weighted

Expected time without a kernel (host, gaps between kernels, launch-bound waiting) is the part `HOST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.bound.roof import TIMES, Row
from roofline.graph.extents import Step
from roofline.scenario.analysis import Analysis
from roofline.scenario.generation import NODES, WEIGHTS, sum_steps
from roofline.scenario.passes import Pass, overlaps
from roofline.scenario.phase import Phase

HOST = "host and gaps"
"""The part of the expected time in which no kernel runs."""

HIDDEN = "hidden by overlap"
"""The negative part for what overlaps: two-batch overlap, or shared experts beside routed ones."""

Parts = Mapping[str, float]
Reading = Literal["expected", "bound", "bytes"]


class Breakdown(Struct, frozen=True):
    """Seconds or bytes of a phase by part; `reference` is the simulated total of the phase."""

    parts: Parts
    reference: float

    @property
    def total(self) -> float:
        return float(sum(self.parts.values()))


def prefill_breakdown(analysis: Analysis, reading: Reading) -> Breakdown:
    """Prefill by operator: bytes, or seconds at the bound or expected, of these with host time."""
    phase = analysis.prefill
    if reading == "expected":
        return _of_expected(phase, phase.expected.mid, np.ones(1))
    name = "bytes" if reading == "bytes" else "bound_time"
    return _of_ops(phase, name, getattr(phase, name))


def _of_ops(phase: Phase, name: str, reference: float) -> Breakdown:
    parts: dict[str, float] = {}
    for key, op in zip(_keys(phase.passes), phase.ops, strict=True):
        run = op.count if name == "bound_time" else op.count * op.busy
        parts[key] = parts.get(key, 0.0) + float(run * getattr(op, name))
    return Breakdown(_less_hidden(parts, phase.passes, reference) if name == "bound_time" else parts, float(reference))


def _less_hidden(parts: dict[str, float], passes: Iterable[Pass], reference: Any) -> dict[str, float]:
    """The parts of a bound time, less what overlaps."""
    if overlaps(passes):
        parts[HIDDEN] = float(reference) - sum(parts.values())
    return parts


def _of_expected(phase: Phase, reference: float, weights: NDArray[np.float64]) -> Breakdown:
    """Expected parts of a phase, summed over points with `weights`; includes the engine's prefill factor."""
    parts: dict[str, float] = {}
    for key, op, found in zip(_keys(phase.passes), phase.ops, phase.expected_ops, strict=True):
        spent = float(np.sum(weights * (op.count * found.time.mid)))
        parts[key] = parts.get(key, 0.0) + spent
    if np.any(phase.hidden):
        parts[HIDDEN] = -phase.engine.kernel_slowdown(phase.name) * float(np.sum(weights * phase.hidden))
    parts[HOST] = float(reference) - sum(parts.values())
    return Breakdown(parts, float(reference))


def steps(analysis: Analysis) -> int:
    """Decode steps of the generation after the first token; 0 for a model that only encodes."""
    return 0 if analysis.decode is None else int(analysis.scenario.generate) - 1


def decode_breakdown(analysis: Analysis, reading: Reading) -> Breakdown:
    """The mean decode step by operator, per emitted token; see `prefill_breakdown`."""
    if reading != "expected":
        return _summed(analysis, times=reading == "bound")
    count, phase = steps(analysis), mean_step(analysis)
    assert analysis.expected.tpot is not None
    if not count:
        return Breakdown({HOST: 0.0}, 0.0)
    weights = WEIGHTS / 2 / analysis.kept_per_iteration
    return _of_expected(phase, float(analysis.expected.tpot.mid), weights)


def mean_contexts(analysis: Analysis) -> NDArray[np.float64]:
    """The three quadrature contexts of the generation (`scenario.generation.smooth_contexts`)."""
    count, first = max(steps(analysis), 1), float(analysis.scenario.first_cached)
    return np.maximum(first + (count - 1) / 2 + max(count, 1) / 2 * NODES, 0.0)


def mean_step(analysis: Analysis) -> Phase:
    """The decode phase at the three quadrature contexts."""
    scenario = analysis.scenario
    contexts = mean_contexts(analysis)
    shape = contexts.shape
    batch, source = (np.full(shape, float(value)) for value in (scenario.batch, scenario.decode_step.source))
    return analysis.decode_phase(Step(batch, np.ones(shape), contexts, source), shape)


def _summed(analysis: Analysis, times: bool) -> Breakdown:
    count = steps(analysis)
    if not count:
        return Breakdown({}, 0.0)
    scenario, schedule = analysis.scenario, analysis.schedule
    source, tokens = float(scenario.decode_step.source), analysis.kept_per_iteration
    parts: dict[str, float] = {}
    for index, run in enumerate(schedule.decode(scenario.decode_step)):
        placement = run.placement
        rows = placement.coefficients[:TIMES] if times else placement.coefficients[[Row.BYTES]]

        def figure(cached: Any, ops: Any, index: int = index, rows: Any = rows) -> Any:
            step = Step(np.full(cached.size, float(scenario.batch)), 1.0, cached, np.full(cached.size, source))
            now = schedule.decode(step)[index]
            return np.einsum("ron,no->ro", rows[:, ops], now.placement.values(now.step)).max(axis=0)

        first = np.full(len(placement.ops), float(scenario.first_cached))
        summed = sum_steps(figure, first, first + count - 1, placement.network.saturation_points)
        for key, (_, number, _), spent in zip(_pass_keys(run), placement.ops, summed, strict=True):
            instances = run.repeat * number * (1.0 if times else run.busy)
            parts[key] = parts.get(key, 0.0) + float(instances * spent / count / tokens)
    if times:
        reference = float(analysis.generation.tpot)
        return Breakdown(_less_hidden(parts, schedule.decode(scenario.decode_step), reference), reference)
    return Breakdown(parts, float(sum(parts.values())))


def _keys(passes: tuple[Pass, ...]) -> list[str]:
    return [key for run in passes for key in _pass_keys(run)]


def _pass_keys(run: Pass) -> list[str]:
    """The names of a pass's parts: operator names, prefixed by the label of a draft, encoder, cascade or host."""
    label = run.label.removeprefix("verify").strip()  # verification is the model's own decode step
    return [f"{label} {op.name}" if label else op.name for op, _, _ in run.placement.ops]
