"""Root finding and searches for the edge of a condition, over integers and reals.

Expected times rise with the workload except for small steps (kernel tiles and waves, a change of kernel, an interval
that widens outside the fitted range). A limit is therefore the last value **before the first failure**: all smaller
values hold. The search evaluates a geometric grid of `POINTS` values over the range, then a linear grid between the
last value that holds and the first that fails, and so on down to adjacent integers. Finally it evaluates each of the
`WINDOW` values before the answer, since a step may break the condition and restore it. The result is exact up to
`WINDOW`; beyond, a failure that lies between grid points and outside the window is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

POINTS = 256
"""Grid points evaluated at once; a vectorised grid of this size costs little more than a single workload."""

WINDOW = 1024
"""Values before the answer that are all evaluated."""

RELATIVE = 1e-7
"""Relative tolerance of a real answer, on the side that meets the targets."""

Holds = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def bracket_root(
    excess: Callable[[float], float],
    low: float,
    high: float,
    below: float,
    above: float,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> tuple[float, float]:
    """A bracket of the root of `excess`, as of `bracket_roots`, of plain numbers."""

    def one(place: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([excess(float(place[0]))])

    left, right, under, over = (np.array([float(each)]) for each in (low, high, below, above))
    start, stop = bracket_roots(one, left, right, under, over, relative, absolute)
    return float(start[0]), float(stop[0])


def bracket_roots(
    excess: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    below: NDArray[np.float64],
    above: NDArray[np.float64],
    relative: float = 0.0,
    absolute: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Brackets of roots of `excess` side by side, each no wider than `absolute` + `relative` * its upper end.

    `below` = excess(low) <= 0 and `above` = excess(high) > 0; the returned ends keep these signs. Inverse quadratic
    interpolation where the last three points allow it, else bisection (Chandrupatla, A new hybrid quadratic/bisection
    algorithm for finding the zero of a nonlinear function without using derivatives, 1997): half of the evaluations of
    bisection.
    """
    # The last place, the other end of the bracket, and the end that the last place replaced (`before`, below).
    last, other, at_last, at_other = high, low, above, below
    with np.errstate(invalid="ignore", divide="ignore"):
        share = above / (above - below)
        while True:
            start, stop = np.minimum(last, other), np.maximum(last, other)
            width = absolute + relative * stop
            wide = stop - start > width
            if not wide.any():
                return start, stop
            share = np.where(np.isfinite(share), share, 0.5)
            # At least half the tolerance from either end, so that the other end converges too.
            place = np.clip(
                last + share * (other - last), start + width / 2, np.maximum(stop, start + width) - width / 2
            )
            place = np.where(wide, place, last)
            found = np.where(wide, excess(place), at_last)
            same = (found > 0) == (at_last > 0)
            before, at_before = np.where(same, last, other), np.where(same, at_last, at_other)
            other, at_other = np.where(same, other, last), np.where(same, at_other, at_last)
            last, at_last = place, found
            part, rise = (last - other) / (before - other), (at_last - at_other) / (at_before - at_other)
            share = at_last / (at_other - at_last) * at_before / (at_other - at_before)
            share += (
                (before - last) / (other - last) * at_last / (at_before - at_last) * at_other / (at_before - at_other)
            )
            share = np.where((rise**2 < part) & ((1 - rise) ** 2 < 1 - part), share, 0.5)


def integer_geomspace(low: float, high: float, points: int) -> NDArray[np.int64]:
    """At most `points` integers from `low` to `high`, geometrically spaced."""
    return np.array(sorted(set(np.geomspace(low, high, points).round().astype(np.int64).tolist())))


def last_before_failure(holds: Holds, low: int, high: int) -> int:
    """The last value of `low` to `high` before the first failure; `low - 1` if none holds, `high` if all do."""
    values = np.array(sorted({low, *integer_geomspace(max(low, 1), high, POINTS).tolist()}))
    found = _failure_bracket(holds, values, low)
    while found[1] - found[0] > 1:
        start, stop = found
        inside = np.unique(np.linspace(start + 1, stop, min(POINTS, stop - start)).astype(np.int64))
        found = _failure_bracket(holds, inside, start + 1)
    answer = found[0]
    first = max(low, answer - WINDOW + 1)
    if answer > first:
        window = np.arange(first, answer + 1)
        answer = _failure_bracket(holds, window, first)[0]
    return int(answer)


def _failure_bracket(holds: Holds, values: NDArray[np.int64], low: int) -> tuple[int, int]:
    """The first of `values` that fails and the one before it; the last value and its successor if none fails."""
    failing = np.flatnonzero(~np.broadcast_to(holds(values), values.shape))
    if not failing.size:
        return int(values[-1]), int(values[-1]) + 1
    index = int(failing[0])
    return (int(values[index - 1]) if index else low - 1), int(values[index])


def largest_satisfying(holds: Holds, low: int, high: int) -> int | None:
    """The largest value of `low` to `high` that holds: an exhaustive window at the top, then a refined grid."""
    window = np.arange(max(low, high - WINDOW + 1), high + 1)
    met = window[np.broadcast_to(holds(window), window.shape)]
    if met.size:
        return int(met[-1])
    if window[0] == low:
        return None
    values = integer_geomspace(low, window[0], POINTS)
    met = np.flatnonzero(np.broadcast_to(holds(values), values.shape))
    if not met.size:
        return None
    index = int(met[-1])
    start, stop = int(values[index]), int(values[min(index + 1, values.size - 1)])
    return last_before_failure(holds, start, stop)


AROUND = 4
"""Values beyond the answer of a search one by one that are evaluated as well."""


def last_before_failure_scalar(holds: Callable[[int], bool], low: int, high: int) -> int:
    """`last_before_failure` for a condition of one value: a geometric series, bisection, and `AROUND` values beyond.

    The condition may fail below and hold above: the answer is the end of the highest run found, `low - 1` if no
    evaluated value holds.
    """
    tried: dict[int, bool] = {}

    def at(value: int) -> bool:
        if value not in tried:
            tried[value] = holds(value)
        return tried[value]

    steps = sorted({*(low + int(1.5**power) - 1 for power in range(200) if 1.5**power <= high), high})
    steps = [value for value in steps if low <= value <= high]
    meeting = [index for index, value in enumerate(steps) if at(value)]
    if not meeting:
        return low - 1
    start = steps[meeting[-1]]
    stop = steps[meeting[-1] + 1] if meeting[-1] + 1 < len(steps) else high + 1
    while stop - start > 1:
        middle = (start + stop) // 2
        start, stop = (middle, stop) if at(middle) else (start, middle)
    beyond = [value for value in range(start + 1, min(start + AROUND, high) + 1) if at(value)]
    return max(beyond, default=start)


def smallest_satisfying(excess: Callable[[float], float], start: float, low: float, high: float) -> float | None:
    """The smallest x of `low` to `high` with `excess(x) <= 0`, for a decreasing function; None if there is none.

    The root is bracketed from `start` by factors of 4 and refined in log x (`bracket_root`).
    """
    if excess(high) > 0:
        return None
    if excess(low) <= 0:
        return low
    below, above = min(max(start, low), high), min(max(start, low), high)
    value = excess(start)
    if value > 0:
        under = value
        while (over := excess(above := min(above * 4, high))) > 0:
            below, under = above, over
    else:
        over = value
        while (under := excess(below := max(below / 4, low))) <= 0:
            above, over = below, under
    tried = {-math.log(above): above}

    def increasing(place: float) -> float:
        """`excess` as a function of -log x."""
        tried[place] = math.exp(-place)
        return excess(tried[place])

    met, _ = bracket_root(increasing, -math.log(above), -math.log(below), over, under, absolute=RELATIVE)
    return tried[met]
