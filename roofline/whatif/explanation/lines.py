"""Lines: steps of an explanation, each a formula whose numbers evaluate to its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.timing.kernels.terms import evaluate, shown


class Line(Struct, frozen=True):
    """One step: a formula, the same with numbers, and its value in `unit`."""

    name: str
    formula: str
    substituted: str
    value: float
    unit: str


class Margin(Struct, frozen=True):
    """The bound of a metric, the next longest roof, and the ratio of their times."""

    bound: str
    next: str
    ratio: float | None


def line(name: str, formula: str, substituted: str, unit: str = "s") -> Line:
    """The step whose value is `substituted`, evaluated."""
    return Line(name, formula, substituted, evaluate(substituted), unit)


def total(values: Iterable[float]) -> str:
    """The formula of a sum of values."""
    return " + ".join(shown(value) for value in values) or "0"


def plain(value: Any) -> float:
    """The first value of an array, or a number."""
    return float(np.ravel(value)[0])
