"""Lines: steps of an explanation, whose formula with numbers evaluates to their value."""

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
    """What bounds a figure, and how many times as long as the next longest roof it takes."""

    bound: str
    next: str
    ratio: float | None


def line(name: str, formula: str, substituted: str, unit: str = "s") -> Line:
    """A step whose value is that of its own arithmetic."""
    return Line(name, formula, substituted, evaluate(substituted), unit)


def total(values: Iterable[float]) -> str:
    """A sum with numbers."""
    return " + ".join(shown(value) for value in values) or "0"


def plain(value: Any) -> float:
    """The one value of an array, or a number."""
    return float(np.ravel(value)[0])
