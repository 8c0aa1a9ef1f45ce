"""Expected times: three figures of a distribution, and how they are read."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Reading = Literal["bound", "low", "mid", "high"]
"""How times are read: at the speed of light, or at one of the three figures of an `Estimate`."""

READINGS: tuple[Reading, ...] = ("bound", "low", "mid", "high")


class Estimate(NamedTuple):
    """Expected seconds: 10th, 50th and 90th percentile; numbers, or arrays of a grid."""

    low: Any
    mid: Any
    high: Any

    def plus(self, other: Estimate) -> Estimate:
        """The time of both, one after the other; their errors are one and the same."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, factor: Any) -> Estimate:
        """The time of `factor` repetitions."""
        return Estimate(*(value * factor for value in self))
