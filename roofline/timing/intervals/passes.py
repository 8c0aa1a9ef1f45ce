"""The interval of a pass from the errors of its kernels, and that of the ratio of two times.

Correlations are measured: errors of kernels in one pass have a common part where the same cause (a device's memory, an
engine's launch) makes all of them slower or faster than expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from roofline.timing.intervals.estimate import Estimate
from roofline.timing.kernels import Array
from roofline.timing.launches import LaunchedKernel

T = TypeVar("T")

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


def inherited(kernels: Sequence[LaunchedKernel]) -> bool:
    """Whether all measured kernels have the constants of other hardware."""
    measured = (entry for entry in kernels if entry.kind in WITHIN_KIND)
    return all(match.basis != "calibrated" for entry in measured for match in entry.matches.values())


class Intervals:
    """The interval of a pass from the errors of its kernels."""

    def __init__(self, kernels: Sequence[LaunchedKernel], counts: Array) -> None:
        shapes = [(entry.kind, _identity(entry)) for entry in kernels]
        self._counts, distinct = _sums(shapes)
        self._counts *= counts
        self._kinds, kinds = _sums([kind for kind, _ in distinct])
        others = inherited(kernels)
        self._shared = np.array([[within_kind(name, others)] for name in kinds])
        self._across = ACROSS_KINDS[others]

    def combined(self, errors: Array) -> Array:
        """The error of a pass at each point, from the errors of single kernels (..., kernels, points).

        Kernels of one shape, which several kinds of layers have, err alike.
        """
        of_shapes = self._counts @ errors
        together, apart = (self._kinds @ of_shapes) ** 2, self._kinds @ of_shapes**2
        squares = self._shared * together + (1 - self._shared) * apart
        together, apart = np.sqrt(squares).sum(axis=-2) ** 2, squares.sum(axis=-2)
        combined: Array = np.sqrt(self._across * together + (1 - self._across) * apart)
        return combined

    def around(self, mid: Array, errors: Array, share: float, spread: tuple[float, float]) -> Estimate:
        """The interval of a pass around the expected seconds `mid` of each point.

        `errors` are the distances of single kernels' p10 and p90 from their p50, in seconds (2, kernels, points), of
        which the `share` counts; `spread` is p10 and p90 of the engine's own factor on a pass.
        """
        below, above = share * self.combined(errors)
        return with_spread(mid, below, above, spread)


def _identity(kernel: LaunchedKernel) -> object:
    """What kernels of one shape and format share; a kernel without a shape shares it with none."""
    shape = kernel.shape
    return kernel.parts if shape is None else (shape.op, *sorted(shape.texts.items()), *sorted(shape.sizes.items()))


def _sums(names: Sequence[T]) -> tuple[Array, Sequence[T]]:
    """The matrix that adds up what has the same name, (distinct names, names), and the distinct names."""
    distinct = list(dict.fromkeys(names))
    rows = {name: row for row, name in enumerate(distinct)}
    found = np.zeros((len(distinct), len(names)))
    found[[rows[name] for name in names], range(len(names))] = 1.0
    return found, distinct


def with_spread(mid: Any, below: Any, above: Any, spread: tuple[float, float]) -> Estimate:
    """Expected seconds whose kernels' p10 and p90 are `below` and `above`, with p10 and p90 of the engine's factor."""
    return Estimate(mid - np.hypot(below, mid * (1 - spread[0])), mid, mid + np.hypot(above, mid * (spread[1] - 1)))


def ratio_error(errors: Mapping[tuple[str, str, str], Iterable[float]], inherited: bool) -> float:
    """The square of the error of the logarithm of a ratio of two times, from those of the kernels of both.

    `errors` are by kind, weight-only kernel and hardware: for each shape the error of its kernel's share of the second
    time less that of the first, so that a kernel which takes an equal share of both adds nothing.
    """
    signed = []
    for (kind, _, _), shapes in errors.items():
        shared, values = within_kind(kind, inherited), np.array(list(shapes))
        together = float(values.sum())
        signed.append(math.copysign(math.sqrt(shared * together**2 + (1 - shared) * float(values @ values)), together))
    across = ACROSS_KINDS[inherited]
    return across * sum(signed) ** 2 + (1 - across) * sum(value**2 for value in signed)
