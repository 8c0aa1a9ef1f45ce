"""Breakdowns: a prefill and a mean decode step, operator by operator, whose parts add up to TTFT and TPOT.

Parts of the same name in all sections and passes are one: `decoder` and `dense` layers both have a `down_proj`. What a
second model adds (a draft, a tower) keeps its label. The mean decode step is over the steps of the whole generation:

    bound      sum over steps of each operator's own bound time, exactly (`scenario.generation.sum_steps`) / steps
    bytes      likewise
    expected   each operator's part of its kernel at the three contexts that TPOT is integrated from, so weighted

An expected pass is more than its kernels: what the host, gaps between kernels and waiting for their issue add is the
part `HOST`. All parts are those of one emitted token where an iteration yields several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.bound.roof import TIMES, Row
from roofline.graph.extents import Step
from roofline.scenario.analysis import Analysis
from roofline.scenario.generation import NODES, WEIGHTS, sum_steps
from roofline.scenario.phase import Phase
from roofline.scenario.schedule import Pass, hiding

HOST = "host and gaps"
"""The part of a pass's expected time that no kernel has."""

HIDDEN = "hidden behind others"
"""What runs beside other parts, of two batches that take turns or of two branches of experts: it is taken off."""

Parts = Mapping[str, float]


class Breakdown(Struct, frozen=True):
    """Seconds or bytes of a phase by part; `total` is their sum, `reference` what the simulator says it is."""

    parts: Parts
    reference: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return float(sum(self.parts.values()))


def prefill_bound(analysis: Analysis) -> Breakdown:
    """Bound seconds of prefill by operator."""
    return _of_ops(analysis.prefill, "bound_time", analysis.prefill.bound_time)


def prefill_bytes(analysis: Analysis) -> Breakdown:
    """Bytes of prefill by operator."""
    return _of_ops(analysis.prefill, "bytes", analysis.prefill.bytes)


def _of_ops(phase: Phase, name: str, reference: float) -> Breakdown:
    parts: dict[str, float] = {}
    for key, op in zip(_keys(phase.passes), phase.ops, strict=True):
        run = op.count if name == "bound_time" else op.count * op.busy
        parts[key] = parts.get(key, 0.0) + float(run * getattr(op, name))
    return Breakdown(_less_hidden(parts, phase.passes, reference) if name == "bound_time" else parts, float(reference))


def _less_hidden(parts: dict[str, float], passes: Iterable[Pass], reference: Any) -> dict[str, float]:
    """The parts of a bound time, and what of them is hidden: operators beside each other count once."""
    if hiding(passes):
        parts[HIDDEN] = float(reference) - sum(parts.values())
    return parts


def prefill_expected(analysis: Analysis) -> Breakdown:
    """Expected seconds of prefill by operator, and the host's."""
    phase = analysis.prefill
    return _of_expected(phase, phase.expected.mid, np.ones(1))


def _of_expected(phase: Phase, reference: float, weights: NDArray[np.float64]) -> Breakdown:
    """Expected parts of a phase over points that are weighted; the engine's factor on prefill is in them."""
    parts: dict[str, float] = {}
    for key, op, found in zip(_keys(phase.passes), phase.ops, phase.expected_ops, strict=True):
        spent = float(np.sum(weights * (op.count * found.time.mid)))
        parts[key] = parts.get(key, 0.0) + spent
    if np.any(phase.hidden):
        parts[HIDDEN] = -phase.engine.slower(phase.name) * float(np.sum(weights * phase.hidden))
    parts[HOST] = float(reference) - sum(parts.values())
    return Breakdown(parts, float(reference))


def steps(analysis: Analysis) -> int:
    """Decode steps of the generation after the first token; 0 for a model that only encodes."""
    return 0 if analysis.decode is None else int(analysis.scenario.generate) - 1


def decode_expected(analysis: Analysis) -> Breakdown:
    """Expected seconds of the mean decode step by operator, and the host's, for one emitted token."""
    count, phase = steps(analysis), mean_step(analysis)
    assert analysis.expected.tpot is not None
    if not count:
        return Breakdown({HOST: 0.0}, 0.0)
    weights = WEIGHTS / 2 / analysis.tokens_per_iteration
    return _of_expected(phase, float(analysis.expected.tpot.mid), weights)


def mean_contexts(analysis: Analysis) -> NDArray[np.float64]:
    """The three contexts that stand for all steps of the generation (see `scenario.generation.smooth_contexts`)."""
    count, first = max(steps(analysis), 1), float(analysis.scenario.first_cached)
    return np.maximum(first + (count - 1) / 2 + max(count, 1) / 2 * NODES, 0.0)


def mean_step(analysis: Analysis) -> Phase:
    """The decode phase at the three contexts of the mean step."""
    scenario = analysis.scenario
    contexts = mean_contexts(analysis)
    source = np.full(contexts.size, float(scenario.decode_step.source))
    batch, ones = np.full(contexts.size, float(scenario.batch)), np.ones(contexts.size)
    return analysis.decoding(Step(batch, ones, contexts, source), (contexts.size,))


def decode_bound(analysis: Analysis) -> Breakdown:
    """Bound seconds of the mean decode step by operator, for one emitted token."""
    return _summed(analysis, times=True)


def decode_bytes(analysis: Analysis) -> Breakdown:
    """Bytes of the mean decode step by operator, for one emitted token."""
    return _summed(analysis, times=False)


def _summed(analysis: Analysis, times: bool) -> Breakdown:
    """Each operator's bound time or bytes summed over all steps, exactly, over their number."""
    count = steps(analysis)
    if not count:
        return Breakdown({}, 0.0)
    scenario, schedule = analysis.scenario, analysis.schedule
    source, tokens = float(scenario.decode_step.source), analysis.tokens_per_iteration
    parts: dict[str, float] = {}
    for index, run in enumerate(schedule.decode(scenario.decode_step)):
        placement = run.placement
        rows = placement.coefficients[:TIMES] if times else placement.coefficients[[Row.BYTES]]

        def figure(cached: Any, ops: Any, index: int = index, rows: Any = rows) -> Any:
            step = Step(np.full(cached.size, float(scenario.batch)), 1.0, cached, np.full(cached.size, source))
            now = schedule.decode(step)[index]
            return np.einsum("ron,no->ro", rows[:, ops], now.placement.values(now.step)).max(axis=0)

        first = np.full(len(placement.ops), float(scenario.first_cached))
        summed = sum_steps(figure, first, first + count - 1, placement.network.knees)
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
    """What parts are called: the operator's name, after the label of a pass that is not the model's own."""
    label = run.label.removeprefix("verify").strip()  # verifying drafts is the model's own decode step
    return [f"{label} {op.name}" if label else op.name for op, _, _ in run.placement.ops]
