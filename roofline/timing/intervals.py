"""How errors of kernels add up to that of a pass: shared in part by other shapes of a kind, and by other kinds.

With the correlation r of shapes of one kind, and R of kinds, and e_k the error of a kernel that runs n_k times

    kind     E_K^2 = r (sum n_k e_k)^2 + (1 - r) sum (n_k e_k)^2,          the n_k layers of one shape err together
    pass     E^2   = R (sum E_K)^2 + (1 - R) sum E_K^2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roofline.timing.kernels import Array
from roofline.timing.launches import Kernel

WITHIN_KIND: Mapping[str, tuple[float, float]] = {
    "gemm": (0.35, 0.43),
    "attention_prefill": (0.25, 0.63),
    "attention_decode": (0.36, 0.61),
    "moe": (0.18, 0.6),
    "collective": (0.35, 0.35),
}
"""Correlation r of the errors of different shapes of one kind: with the hardware's own constants, and with those of
others (`python -m roofline.validate.score.correlation`: held-out rows at the same number of tokens; experts without
w4a16_mxfp4)."""

UNMEASURED_KIND = (0.5, 0.5)
"""The same for kernels that nobody measured."""

ACROSS_KINDS = (0.0, 0.15)
"""Correlation R of the errors of different kinds, likewise."""


def within_kind(kind: str, inherited: bool) -> float:
    """The correlation of errors of different shapes of a kind; `inherited` constants are those of other hardware."""
    return WITHIN_KIND.get(kind, UNMEASURED_KIND)[inherited]


def inherited(kernels: Sequence[Kernel]) -> bool:
    """Whether the constants of kernels are those of other hardware."""
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
        """The error of the sum over kernels for each point, of errors of single ones (kernels, points)."""
        together, apart = (self._counts @ errors) ** 2, self._counts**2 @ errors**2
        squares = self._shared * together + (1 - self._shared) * apart
        together, apart = np.sqrt(squares).sum(axis=0) ** 2, squares.sum(axis=0)
        combined: Array = np.sqrt(self._across * together + (1 - self._across) * apart)
        return combined
