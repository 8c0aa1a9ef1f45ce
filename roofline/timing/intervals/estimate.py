"""Estimates: expected times with their 80% interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

Reading = Literal["bound", "low", "mid", "high"]
"""A time to read: the bound, or one of the three of an `Estimate`."""

READINGS: tuple[Reading, ...] = ("bound", "low", "mid", "high")

INVERSE: Mapping[str, Reading] = {"low": "high", "high": "low"}
"""The reading of a time at which its inverse, a rate or a power, has a reading."""


def locked(*figures: Any) -> tuple[Any, ...]:
    """Figures of an answer, whose arrays nobody who converts them in place (`seconds *= 1000`) changes in it."""
    for figure in figures:
        if isinstance(figure, np.ndarray):
            figure.flags.writeable = False
    return figures


class Estimate(NamedTuple):
    """Expected seconds: 10th, 50th and 90th percentile; numbers, or arrays of a grid."""

    low: Any
    mid: Any
    high: Any

    def __add__(self, other: Estimate) -> Estimate:  # type: ignore[override]
        """The sum of two times whose errors are fully correlated."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))

    def __radd__(self, other: Any) -> Estimate:
        """The estimate where `other` is the 0 with which `sum` begins."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def at_least(self, bound: Any) -> Estimate:
        """The time with every percentile at `bound` or above, in ascending order: the gate of every expected time."""
        if np.ndim(self.mid) or np.ndim(bound):
            mid = np.maximum(self.mid, bound)
            return Estimate(*locked(np.minimum(np.maximum(self.low, bound), mid), mid, np.maximum(self.high, mid)))
        mid = max(self.mid, bound)
        return Estimate(min(max(self.low, bound), mid), mid, max(self.high, mid))

    def __mul__(self, factor: Any) -> Estimate:
        """The time of `factor` repetitions."""
        return Estimate(*(value * factor for value in self))

    def __rmul__(self, factor: Any) -> Estimate:
        return self.__mul__(factor)

    def __lt__(self, other: Any) -> bool:
        """Whether the middle is shorter than that of another estimate, or than a number of seconds."""
        return bool(self.mid < _middle(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.mid <= _middle(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.mid > _middle(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.mid >= _middle(other))


def _middle(other: Any) -> Any:
    return other.mid if isinstance(other, Estimate) else other
