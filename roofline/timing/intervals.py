"""Estimates with 80% intervals, and how errors of kernels add up to the error of a pass.

Errors of one kind of kernel are correlated, and errors of different kinds. With the correlation r of shapes of one
kind, R of kinds, and e_k the error of a kernel that runs n_k times

    kind     E_K^2 = r (sum n_k e_k)^2 + (1 - r) sum (n_k e_k)^2,          the n_k layers of one shape err together
    pass     E^2   = R (sum E_K)^2 + (1 - R) sum E_K^2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from roofline.timing.kernels import Array
from roofline.timing.launches import Kernel

Reading = Literal["bound", "low", "mid", "high"]
"""A time to read: the bound, or one of the three of an `Estimate`."""

READINGS: tuple[Reading, ...] = ("bound", "low", "mid", "high")


class Estimate(NamedTuple):
    """Expected seconds: 10th, 50th and 90th percentile; numbers, or arrays of a grid."""

    low: Any
    mid: Any
    high: Any

    def plus(self, other: Estimate) -> Estimate:
        """The sum of two times whose errors are fully correlated."""
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))

    def at_least(self, bound: Any) -> Estimate:
        """The time with every percentile at `bound` or above, in ascending order: the gate of every expected time."""
        if np.ndim(self.mid) or np.ndim(bound):
            mid = np.maximum(self.mid, bound)
            return Estimate(np.minimum(np.maximum(self.low, bound), mid), mid, np.maximum(self.high, mid))
        mid = max(self.mid, bound)
        return Estimate(min(max(self.low, bound), mid), mid, max(self.high, mid))

    def times(self, factor: Any) -> Estimate:
        """The time of `factor` repetitions."""
        return Estimate(*(value * factor for value in self))


WITHIN_KIND: Mapping[str, tuple[float, float]] = {
    "gemm": (0.35, 0.43),
    "attention_prefill": (0.25, 0.63),
    "attention_decode": (0.36, 0.61),
    "moe": (0.18, 0.6),
    "collective": (0.35, 0.35),
}
"""Correlation r of errors of different shapes of one kind: with the hardware's own constants, and with inherited ones
(`python -m lab.score.correlation`: held-out rows at equal tokens; MoE without w4a16_mxfp4)."""

UNMEASURED_KIND = (0.5, 0.5)
"""The same for kernels without measurements."""

ACROSS_KINDS = (0.0, 0.15)
"""Correlation R of errors of different kinds: own constants, inherited ones."""


def within_kind(kind: str, inherited: bool) -> float:
    """The correlation of errors of different shapes of a kind, with constants of other hardware if `inherited`."""
    return WITHIN_KIND.get(kind, UNMEASURED_KIND)[inherited]


def inherited(kernels: Sequence[Kernel]) -> bool:
    """Whether all measured kernels have the constants of other hardware."""
    measured = (entry for entry in kernels if entry.kind in WITHIN_KIND)
    return all(match.basis != "calibrated" for entry in measured for match in entry.matches.values())


class Intervals:
    """The error of a pass from those of its kernels."""

    def __init__(self, kernels: Sequence[Kernel], counts: Array) -> None:
        kinds = {name: row for row, name in enumerate(dict.fromkeys(entry.kind for entry in kernels))}
        self._counts = np.zeros((len(kinds), len(kernels)))
        self._counts[[kinds[entry.kind] for entry in kernels], range(len(kernels))] = counts
        others = inherited(kernels)
        self._shared = np.array([[within_kind(name, others)] for name in kinds])
        self._across = ACROSS_KINDS[others]

    def combined(self, errors: Array) -> Array:
        """The error of a pass at each point, from the errors of single kernels (kernels, points)."""
        together, apart = (self._counts @ errors) ** 2, self._counts**2 @ errors**2
        squares = self._shared * together + (1 - self._shared) * apart
        together, apart = np.sqrt(squares).sum(axis=0) ** 2, squares.sum(axis=0)
        combined: Array = np.sqrt(self._across * together + (1 - self._across) * apart)
        return combined
