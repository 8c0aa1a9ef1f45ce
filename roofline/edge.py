"""The edge of a condition in one variable: where an increasing function crosses 0, and whole numbers to try."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import NDArray

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
