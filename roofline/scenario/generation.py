"""The sum of a cost over all decode steps of a generation, without evaluating every step.

The bound time of a step is piecewise linear in the context and, between the points where an attention window saturates,
convex. Over a linear stretch the sum of n steps is n times the step at the mean context, so `sum_steps` is exact with a
few evaluations. Expected times are smooth instead, and `sum_smooth` integrates them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TOLERANCE = 1e-12
"""Relative difference between the mean of the ends and the middle of a linear stretch due to rounding."""

STRETCHES = 4096
"""Points whose stretches are evaluated together."""

StepTime = Callable[[Array, Any], Array]
"""(cached tokens of each point, indices of these points) -> seconds of a decode step at each."""


def sum_steps(step_time: StepTime, first: Array, last: Array, saturation_points: Collection[int | range]) -> Array:
    """The sum of `step_time` over cached = first, first + 1, ..., last, for each point of the flat arrays.

    `saturation_points` are the cached tokens at which the cost of some layer stops growing: a step sees cached + 1
    keys, so a window of w saturates at cached = w - 1. A `range` of them is where attention in chunks starts anew.
    Empty ranges (last < first) sum to 0. Stretches are evaluated together, and bisected where they bend.
    """
    summed = np.zeros_like(first)
    for block in np.split(np.arange(first.size), range(STRETCHES, first.size, STRETCHES)):
        bends = _points_between(saturation_points, int(first[block].min()), int(last[block].max()))
        start = np.maximum(first[block], np.array([-np.inf, *bends])[:, np.newaxis])
        stop = np.minimum(last[block], np.array([*(bend - 1 for bend in bends), np.inf])[:, np.newaxis])
        inside = np.nonzero(stop >= start)
        start, stop, points = start[inside], stop[inside], block[inside[1]]
        while points.size:
            seconds, bent = _sum_convex(step_time, start, stop, points)
            np.add.at(summed, points, np.where(bent, 0.0, seconds))
            middle = np.floor((start[bent] + stop[bent]) / 2)
            start, stop = np.append(start[bent], middle + 1), np.append(middle, stop[bent])
            points = np.tile(points[bent], 2)
    return summed


def _points_between(saturation_points: Collection[int | range], first: int, last: int) -> list[int]:
    """All single points, and those of each range that lie between `first` and `last`, in order."""
    found: set[int] = set()
    for point in saturation_points:
        if isinstance(point, range):
            start = -(-max(first, point.start) // point.step) * point.step
            found.update(range(start, min(last + 1, point.stop), point.step))
        else:
            found.add(point)
    return sorted(found)


def _sum_convex(step_time: StepTime, first: Array, last: Array, points: Any) -> tuple[Array, Any]:
    """The sums over convex stretches, and where the middle lies below the mean of the ends: these are not the sum."""
    count = last - first + 1
    at_first, middle, at_last = np.split(
        step_time(np.concatenate([first, (first + last) / 2, last]), np.tile(points, 3)), 3
    )
    ends = (at_first + at_last) / 2
    return count * np.where(count <= 2, ends, middle), (ends - middle > TOLERANCE * ends) & (count > 2)


NODES, WEIGHTS = np.array([-(0.6**0.5), 0.0, 0.6**0.5]), np.array([5 / 9, 8 / 9, 5 / 9])
"""Three-point Gauss-Legendre quadrature on (-1, 1), exact for polynomials of degree 5 in the context."""


def smooth_contexts(first: Array, steps: Array) -> Array:
    """The quadrature nodes of `steps` contexts from `first` on, with shape (3 * points,).

    The discontinuities of kernel times in the context are small compared with the time of a pass.
    """
    middle, half = first + (steps - 1) / 2, np.maximum(steps, 1) / 2
    return np.concatenate([np.maximum(middle + half * node, 0.0) for node in NODES])


def sum_smooth(times: Array, steps: Array) -> Array:
    """The sum of smooth times over `steps` contexts, from the `times` at `smooth_contexts`, for each point."""
    weighted = np.reshape(times, (len(NODES), steps.size)) * WEIGHTS[:, np.newaxis]
    return np.asarray(steps * weighted.sum(axis=0) / 2)
