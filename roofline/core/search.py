"""Search: where a condition that more of something breaks stops to hold.

Expected times rise with the workload but for small steps (tiles and waves of kernels, another choice of kernel, an
interval that is wider outside of the fitted range). An answer is therefore defined as the last value **before the first
failure**: all smaller values hold as well. It is found on a grid of `POINTS` values with equal ratios over the whole
range, then on `POINTS` even ones between the last that holds and the first that fails, and so on down to neighbours;
last, each of the `WINDOW` values before the answer is tried, since a step may break the condition and mend it again.
That is every value where the answer is at most `WINDOW`; beyond, a lapse that lies between grid points and farther
from the answer than the window goes unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 256
"""Values tried at once: a grid of so many costs little more than a single workload."""

WINDOW = 1024
"""Values before the answer that are all tried."""

Holds = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


HALVING = 4
"""Each so many steps the bracket is halved: false position alone is slow where the function is very bent."""


def narrowed(
    excess: Callable[[float], float],
    low: float,
    high: float,
    below: float,
    above: float,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> tuple[float, float]:
    """The bracket of an edge, no wider than `absolute` and `relative` of its upper end together.

    `below` = excess(low) is not above 0, `above` = excess(high) is, and so it is with the ends that are returned. False
    position with the Illinois rule (an end that stays has its value halved) takes about half of the evaluations of
    bisection, which serves where a value is not finite.
    """
    kept = 0
    for step in count(1):
        width = absolute + relative * high
        if high - low <= width:
            return low, high
        even = step % HALVING == 0 or not math.isfinite(above - below) or above <= below
        middle = low + (high - low) * (0.5 if even else below / (below - above))
        # Not nearer to an end than half the distance that is asked for: the other end comes there too.
        middle = min(max(middle, low + width / 2), high - width / 2)
        found = excess(middle)
        if found > 0:
            high, above, below, kept = middle, found, below / (2 if kept > 0 else 1), 1
        else:
            low, below, above, kept = middle, found, above / (2 if kept < 0 else 1), -1
    raise AssertionError("unreachable")


def whole_series(low: float, high: float, points: int) -> NDArray[np.int64]:
    """At most so many whole numbers from `low` to `high`, in about equal ratios."""
    return np.array(sorted(set(np.geomspace(low, high, points).round().astype(np.int64).tolist())))


def last_holding(holds: Holds, low: int, high: int) -> int:
    """The last value from `low` on before the first failure: `low - 1` where none holds, `high` where all do."""
    values = np.array(sorted({low, *whole_series(max(low, 1), high, POINTS).tolist()}))
    found = _before_failure(holds, values, low)
    while found[1] - found[0] > 1:
        start, stop = found
        inside = np.unique(np.linspace(start + 1, stop, min(POINTS, stop - start)).astype(np.int64))
        found = _before_failure(holds, inside, start + 1)
    answer = found[0]
    first = max(low, answer - WINDOW + 1)
    if answer > first:
        window = np.arange(first, answer + 1)
        answer = _before_failure(holds, window, first)[0]
    return int(answer)


def _before_failure(holds: Holds, values: NDArray[np.int64], low: int) -> tuple[int, int]:
    """The last of the values before the first that fails, and that one; neighbours where there is none."""
    failing = np.flatnonzero(~np.broadcast_to(holds(values), values.shape))
    if not failing.size:
        return int(values[-1]), int(values[-1]) + 1
    index = int(failing[0])
    return (int(values[index - 1]) if index else low - 1), int(values[index])


def last_meeting(holds: Holds, low: int, high: int) -> int | None:
    """The largest value of `low` to `high` that holds, searched downwards: a window of all, then a grid, refined."""
    window = np.arange(max(low, high - WINDOW + 1), high + 1)
    met = window[np.broadcast_to(holds(window), window.shape)]
    if met.size:
        return int(met[-1])
    if window[0] == low:
        return None
    values = whole_series(low, window[0], POINTS)
    met = np.flatnonzero(np.broadcast_to(holds(values), values.shape))
    if not met.size:
        return None
    index = int(met[-1])
    start, stop = int(values[index]), int(values[min(index + 1, values.size - 1)])
    return last_holding(holds, start, stop)


def last_by_one(holds: Callable[[int], bool], low: int, high: int, around: int = 4) -> int:
    """As `last_holding`, for a condition that is tried one value at a time: doubling, bisection, and `around` before.

    The condition may fail below and hold above: the answer is the last value of the stretch that was found, `low - 1`
    where no value that was tried holds.
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
    beyond = [value for value in range(start + 1, min(start + around, high) + 1) if at(value)]
    return max(beyond, default=start)


RELATIVE = 1e-7
"""How far, relatively, a real answer may lie from the exact edge, on the side that meets the targets."""


def smallest_real(excess: Callable[[float], float], start: float, low: float, high: float) -> float | None:
    """The smallest x of `low` to `high` with `excess(x) <= 0`, for a function that falls with x; None if none has.

    The edge is bracketed from `start` by factors of 4 and closed in log x (`narrowed`). Answers `low`
    itself where the condition holds there.
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

    def rising(place: float) -> float:
        """The function falls with x: it rises with -log x."""
        tried[place] = math.exp(-place)
        return excess(tried[place])

    met, _ = narrowed(rising, -math.log(above), -math.log(below), over, under, absolute=RELATIVE)
    return tried[met]


def integers(values: Any) -> NDArray[np.int64]:
    """Values as an array of integers."""
    return np.asarray(values, dtype=np.int64)
