"""Generation: prefill, then one decode step for each further token, the context growing by one each step.

The bound time of a step is piecewise linear and, between the points where an attention window saturates, convex in
the context. Over a stretch where it is linear, the sum of n steps is n times the step at the mean context: the sum
below is exact and costs a handful of evaluations instead of one a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TOLERANCE = 1e-12
"""How far, relatively, the mean of the ends may lie from the middle of a linear stretch (rounding)."""

StepTime = Callable[[Array, Any], Array]
"""Seconds of a decode step: (cached tokens of each point, indices of these points) -> seconds of each."""


def sum_steps(step_time: StepTime, first: Array, last: Array, knees: Iterable[int]) -> Array:
    """The sum of `step_time` over cached = first, first + 1, ..., last, for each point of the flat arrays.

    `knees` are the cached tokens from which on some layer's cost grows no further: a step with `cached` tokens sees
    cached + 1 keys, so a window of w saturates at cached = w - 1. Empty ranges (last < first) sum to 0.
    """
    everything = np.arange(first.size)
    knees = sorted(set(knees))
    summed = np.zeros_like(first)
    for low, high in zip([-np.inf, *knees], [*(knee - 1 for knee in knees), np.inf], strict=True):
        start, stop = np.maximum(first, low), np.minimum(last, high)
        inside = everything[stop >= start]
        if inside.size:
            summed[inside] += _sum_convex(step_time, start[inside], stop[inside], inside)
    return summed


def _sum_convex(step_time: StepTime, first: Array, last: Array, points: Any) -> Array:
    """The sum over a stretch on which the time is convex: where the middle lies below the mean of the ends, halve."""
    count = last - first + 1
    middle = step_time((first + last) / 2, points)
    ends = (step_time(first, points) + step_time(last, points)) / 2
    summed = count * np.where(count <= 2, ends, middle)
    bent = (ends - middle > TOLERANCE * ends) & (count > 2)
    if bent.any():
        split = np.floor((first[bent] + last[bent]) / 2)
        summed[bent] = _sum_convex(step_time, first[bent], split, points[bent]) + _sum_convex(
            step_time, split + 1, last[bent], points[bent]
        )
    return summed


NODES, WEIGHTS = np.array([-(0.6**0.5), 0.0, 0.6**0.5]), np.array([5 / 9, 8 / 9, 5 / 9])
"""Where a smooth time is evaluated, and what each counts: the three-point rule of Gauss and Legendre on (-1, 1).

It is exact for polynomials of degree 5 in the context.
"""


def smooth_contexts(first: Array, steps: Array) -> Array:
    """The contexts that stand for `steps` ones from `first` on: three for each point of the flat arrays, (3 points).

    The steps of kernels in the context are small beside the time of a pass.
    """
    middle, half = first + (steps - 1) / 2, np.maximum(steps, 1) / 2
    return np.concatenate([np.maximum(middle + half * node, 0.0) for node in NODES])


def sum_smooth(times: Array, steps: Array) -> Array:
    """The sum of smooth times over `steps` contexts, from those at `smooth_contexts`, for each point."""
    weighted = np.reshape(times, (len(NODES), steps.size)) * WEIGHTS[:, np.newaxis]
    summed: Array = steps * weighted.sum(axis=0) / 2
    return summed
