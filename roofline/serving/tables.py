"""Tables of seconds on geometric grids, linear between their points: of arrays, and of one plain number at a time."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PLAIN = (float, int)
"""Types of plain numbers, which are interpolated without the overhead of arrays."""


def geometric(low: float, high: float, ratio: float) -> Array:
    """Whole numbers from `low` to at least `high`, each about `ratio` times the one before, and powers of two."""
    count = int(np.ceil(np.log(max(high / low, ratio)) / np.log(ratio))) + 1
    numbers = np.round(low * ratio ** np.arange(count))
    powers = 2.0 ** np.arange(np.ceil(np.log2(low)), np.floor(np.log2(numbers[-1])) + 1)
    return np.unique(np.append(numbers, powers))


class Table:
    """Seconds on a grid of two axes, linear between its points and beyond them."""

    def __init__(self, rows: Array, columns: Array, seconds: Array) -> None:
        self.rows, self.columns, self.seconds = rows, columns, seconds
        self._plain = rows.tolist(), columns.tolist(), seconds.tolist()

    def __call__(self, row: Any, column: Any) -> Any:
        """Seconds at rows and columns that broadcast, at least 0."""
        if type(row) not in PLAIN or type(column) not in PLAIN:
            return np.maximum(self.signed(row, column), 0.0)
        rows, columns, seconds = self._plain
        i = bisect_left(rows, row, 1, len(rows) - 1) - 1
        j = bisect_left(columns, column, 1, len(columns) - 1) - 1
        u = (row - rows[i]) / (rows[i + 1] - rows[i])
        v = (column - columns[j]) / (columns[j + 1] - columns[j])
        low, high = seconds[i], seconds[i + 1]
        first = low[j] + v * (low[j + 1] - low[j])
        second = high[j] + v * (high[j + 1] - high[j])
        return max(first + u * (second - first), 0.0)

    def nearest(self, row: float, column: float) -> float:
        """The value at a row and a column; beyond the grid, that of its edge."""
        inside = ((float(place), axis) for place, axis in zip((row, column), self._plain[:2], strict=True))
        return float(self(*(min(max(place, axis[0]), axis[-1]) for place, axis in inside)))

    def signed(self, row: Any, column: Any) -> Array:
        """Values at rows and columns that broadcast, of either sign, such as differences of times."""
        row, column = np.asarray(row, float), np.asarray(column, float)
        i = np.clip(np.searchsorted(self.rows, row) - 1, 0, self.rows.size - 2)
        j = np.clip(np.searchsorted(self.columns, column) - 1, 0, self.columns.size - 2)
        u = (row - self.rows[i]) / (self.rows[i + 1] - self.rows[i])
        v = (column - self.columns[j]) / (self.columns[j + 1] - self.columns[j])
        width = self.columns.size
        low, place = self.seconds.ravel(), i * width + j
        low, right, below, across = (low.take(place + step) for step in (0, 1, width, width + 1))
        first, second = low + v * (right - low), below + v * (across - below)
        return np.asarray(first + u * (second - first))


class Interpolation:
    """Linear interpolation of values over one axis; outside it the value of the nearest end."""

    def __init__(self, places: Array, values: Array) -> None:
        self.places, self.values = places, values
        self._plain = places.tolist(), values.tolist()

    def __add__(self, values: Array) -> Interpolation:
        return Interpolation(self.places, self.values + values)

    def __call__(self, place: Any) -> Any:
        """The value at a place."""
        if type(place) not in PLAIN:
            return np.interp(place, self.places, self.values)
        places, values = self._plain
        if place <= places[0]:
            return values[0]
        right = bisect_left(places, place)
        if right >= len(places):
            return values[-1]
        share = (place - places[right - 1]) / (places[right] - places[right - 1])
        return values[right - 1] + share * (values[right] - values[right - 1])
