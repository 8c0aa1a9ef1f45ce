"""Gains: the speedup of one scenario over another, with its 80% interval.

Two predictions share most of their errors: the same kernel has the same error in both. With the signed relative errors
of all kernels of both,

    c_k = n_k e_k / t_after - n_k e_k / t_before        (e_k: half the 80% interval; one k where a kernel runs in both)
    gain      ln(gain) +- E,  E of c_k as the error of a pass of its kernels (`roofline.timing.intervals`)

Errors of kernels on different hardware, and of the host time of
different engines, are independent; the error of a shared engine cancels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline.graph.extents import Step
from roofline.scenario.analysis import Analysis
from roofline.scenario.breakdown import steps
from roofline.scenario.generation import NODES
from roofline.scenario.phase import Phase
from roofline.specs.engine import Engine
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.passes import ratio_error

Timed = Literal["ttft", "tpot", "total"]


class _Part(NamedTuple):
    """A kernel of a pass: kind, weight-only kernel and hardware, key of its shape, error (s), whether inherited."""

    kind: tuple[str, str, str]
    shape: float
    error: float
    inherited: bool


def gain(before: Analysis, after: Analysis, metric: Timed = "total") -> Estimate:
    """The speedup of `after` over `before`, each a single workload: p10, p50 and p90.

    The p50 is the ratio of p50 times. Raises RooflineError as expected times do.
    """
    first, second = (_time(analysis, metric) for analysis in (before, after))
    errors: dict[tuple[str, str, str], dict[float, float]] = defaultdict(lambda: defaultdict(float))
    inherited = False
    for analysis, sign, time in ((before, -1, first), (after, 1, second)):
        for part in _parts(analysis, metric):
            errors[part.kind][part.shape] += sign * part.error / time
            inherited |= part.inherited
    kinds = {kind: shapes.values() for kind, shapes in errors.items()}
    square = ratio_error(kinds, inherited) + _hosts(before, after)
    middle, width = first / second, math.exp(math.sqrt(square))
    return Estimate(middle / width, middle, middle * width)


def _time(analysis: Analysis, metric: Timed) -> float:
    value = getattr(analysis.expected, metric)
    return math.nan if value is None else float(value.mid)


def _hosts(before: Analysis, after: Analysis) -> float:
    """The squared relative error of two different engines; 0 for one engine."""
    engines = (before.scenario.profile, after.scenario.profile)
    one, other = (replace(engine, graphs=(), fusions=(), parameters=_host(engine)) for engine in engines)
    return 0.0 if one == other else sum(_half(engine) ** 2 for engine in engines)


def _host(engine: Engine) -> dict[str, float]:
    """The parameters of an engine without those of its kernels, which techniques change."""
    return {name: value for name, value in engine.parameters.items() if name != "split_kv"}


def _half(engine: Engine) -> float:
    low, high = engine.spread
    return (high - low) / 2


@lru_cache(maxsize=16)
def _parts(analysis: Analysis, metric: Timed) -> tuple[_Part, ...]:
    """The kernels in the metric's time; cached, since one scenario is compared with many."""
    found: list[_Part] = []
    if metric != "tpot":
        found += _of_phase(analysis.prefill, 1.0)
    if metric != "ttft" and steps(analysis):
        count = steps(analysis) if metric == "total" else 1
        found += _of_phase(_middle_step(analysis), count / analysis.kept_per_iteration)
    return tuple(found)


def _middle_step(analysis: Analysis) -> Phase:
    """The decode step halfway through the generation, which represents the errors of all steps."""
    scenario = analysis.scenario
    context = float(scenario.first_cached) + (steps(analysis) - 1) / 2 * (1 + NODES[len(NODES) // 2])
    return analysis.decode_phase(Step(float(scenario.batch), 1.0, context, float(scenario.decode_step.source)))


def _of_phase(phase: Phase, times: float) -> Iterator[_Part]:
    slower = phase.engine.kernel_slowdown(phase.name)
    for run in phase.passes:
        kernels = phase.timed(run)
        detail = kernels.detail(run.step)
        half = (detail.times[2, :, 0] - detail.times[0, :, 0]) / 2
        for kernel, error, middle in zip(kernels.kernels, half.tolist(), detail.mid[:, 0].tolist(), strict=True):
            variant = "" if kernel.shape is None else kernel.shape.texts.get("weight_only", "")
            kind = (kernel.kind, str(variant), run.placement.hardware.name)
            weight = times * slower * kernel.count * float(np.mean(run.repeat))
            # Equal times to many digits identify the same kernel.
            yield _Part(kind, float(f"{middle:.9e}"), weight * error, kernel.basis(run.step.queries) != "calibrated")
