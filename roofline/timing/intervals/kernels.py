"""The interval of one kernel's time, from the residuals of its fit and the levels that its constants crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.timing.kernels import Array

TO_P90 = 1.2816
"""Standard deviations from the median of a normal distribution to its 90th percentile."""

OUTSIDE = 2.0
"""Factor on the logarithm of the interval of shapes outside the fitted range."""


class Residuals(Struct, frozen=True):
    """Measured over predicted time of `rows` measurements: 10th, 50th and 90th percentile."""

    low: float
    mid: float
    high: float
    rows: int

    def at_least(self, other: Residuals) -> Residuals:
        """These percentiles, as far apart as the other ones or farther."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


UNKNOWN = Residuals(0.5, 1.0, 2.0, 0)
"""Residuals of constants that state none, such as those of a user's file."""

UNMEASURED = Residuals(0.6, 1.0, 1.6, 0)
"""Residuals of kernels without measurements, at constants of related ones or at typical efficiencies."""


def wider(times: Array, spread: tuple[float, float]) -> Array:
    """Times (10th, 50th and 90th percentile, first axis) with a further, independent factor of these p10 and p90."""
    low, mid, high = times
    below, above = np.log(spread)
    exponents = [-np.hypot(np.log(mid / low), below), np.zeros_like(mid), np.hypot(np.log(high / mid), above)]
    return np.asarray(mid * np.exp(exponents))


def unmeasured(residuals: Mapping[str, Residuals]) -> dict[str, Residuals]:
    """Residuals by regime, at least those of a kernel without measurements."""
    return {regime: own.at_least(UNMEASURED) for regime, own in {"all": UNMEASURED, **residuals}.items()}


def inside(ranges: Mapping[str, tuple[float, float]], shape: Any, rows: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether each row of a kernel's shape lies in the fitted range of every size."""
    found: Any = np.ones(rows, dtype=bool) if rows else True
    for name, (low, high) in ranges.items():
        values = getattr(shape, name, None)
        if isinstance(values, float):
            found = found & (low <= values <= high)
        elif values is not None:
            found = found & (values >= low) & (values <= high)
    return cast("NDArray[np.bool_]", found)


def factors(residuals: Mapping[str, Residuals], regimes: Sequence[str], widening: float, spread: float) -> Array:
    """The factors from p50 to p10, p50 and p90, (3, 2, regimes): of shapes outside the fitted range, then inside."""
    everywhere = residuals.get("all", UNKNOWN)
    found = [residuals.get(regime, everywhere) for regime in regimes]
    ends = [[min(own.low, 1.0) for own in found], [max(own.high, 1.0) for own in found]]
    exponents = np.log(ends)[:, np.newaxis] * (widening * np.array([[OUTSIDE], [1.0]]))
    below, above = np.hypot(exponents, TO_P90 * spread)
    return np.asarray(np.exp([-below, np.zeros_like(below), above]))
